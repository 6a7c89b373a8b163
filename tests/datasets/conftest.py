"""Real files where there are some; a folder of its own for the cache."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from privfair.datasets.registry import find


@pytest.fixture
def real() -> Callable[[str], None]:
    """Skip the test if the files of a dataset are not in $PRIVFAIR_DATA."""

    def require(name: str) -> None:
        folder = os.environ.get("PRIVFAIR_DATA")
        if not folder:
            pytest.skip("PRIVFAIR_DATA is not set: no real data files")
        for file in find(name).files:
            if not (Path(folder) / file.name).is_file():
                pytest.skip(f"{file.name} is not in PRIVFAIR_DATA")

    return require


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache and no data folder; the folder that the cache will be."""
    monkeypatch.delenv("PRIVFAIR_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "privfair"


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    """Write a CSV file."""

    def write_file(text: str, name: str = "data.csv") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write_file
