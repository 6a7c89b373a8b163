"""Hooks of the site: files of the repository beside docs/ that its pages link to."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

BESIDE = ("notebooks", "examples")  # folders that the pages link to


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The files of the site, with what lies beside docs/."""
    root = Path(config.docs_dir).parent
    for folder in BESIDE:
        for path in sorted((root / folder).glob("*.[it]*")):
            files.append(File.generated(config, f"{folder}/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page, with links to `../notebooks/…` (right in the repository) pointing to the copy inside the site."""
    return re.sub(rf"\]\(\.\./((?:\.\./)*(?:{'|'.join(BESIDE)})/)", r"](\1", markdown)
