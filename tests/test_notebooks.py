"""The notebooks run from top to bottom; their own assertions hold."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parent.parent / "notebooks"


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.ipynb")))
# jupyter_client's own sockets are closed late; nothing of ours
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_notebook_runs(name: str, tmp_path: Path) -> None:
    notebook = nbformat.read(FOLDER / name, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
