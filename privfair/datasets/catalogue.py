"""What the registry knows about a dataset before it is loaded."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from privfair.datasets.files import SourceFile, locate
from privfair.datasets.records import Federation

COMMON = ("seed", "test_fraction")  # every loader takes these; the rest are its own options
REQUIRED = "(required)"
_TOPIC = re.compile(r"[A-Z][\w ,']{2,25}( \([^)]*\))?:")


@dataclass(frozen=True)
class Dataset:
    """A loader with where its data come from. The loader's docstring is the documentation of its preprocessing."""

    name: str
    description: str
    source: str
    licence: str
    load: Callable[..., Federation]
    files: tuple[SourceFile, ...] = ()

    def options(self) -> dict[str, Any]:
        """The loader's own options with their defaults."""
        parameters = inspect.signature(self.load).parameters.values()
        return {
            p.name: REQUIRED if p.default is inspect.Parameter.empty else p.default
            for p in parameters
            if p.name not in COMMON
        }

    def info(self) -> DatasetInfo:
        """What `describe` tells."""
        files = tuple(FileInfo(file.name, file.sha256, file.urls, locate(file.name)) for file in self.files)
        documentation = inspect.getdoc(self.load) or ""
        return DatasetInfo(self.name, self.description, self.source, self.licence, files, self.options(), documentation)


@dataclass(frozen=True)
class FileInfo:
    """A file of a dataset, and where it was found on this machine."""

    name: str
    sha256: str
    urls: tuple[str, ...]
    found: Path | None


@dataclass(frozen=True)
class DatasetInfo:
    """A dataset of the registry as `privfair data list` shows it."""

    name: str
    description: str
    source: str
    licence: str
    files: tuple[FileInfo, ...]
    options: Mapping[str, Any]
    preprocessing: str = field(repr=False)

    @property
    def available(self) -> bool:
        """Whether all its files are on this machine."""
        return all(file.found is not None for file in self.files)

    def paragraphs(self) -> list[str]:
        """The documentation of the preprocessing, one topic ("Features: …") per paragraph, without line breaks."""
        lines = [line.strip() for line in self.preprocessing.splitlines()]
        joined = "\n".join(f"\n{line}" if _TOPIC.match(line) else line for line in lines)
        return [paragraph.replace("\n", " ").strip() for paragraph in re.split(r"\n{2,}", joined) if paragraph.strip()]
