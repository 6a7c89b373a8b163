"""The notebooks run from top to bottom and their own assertions hold; what is committed can be read on the web."""

from __future__ import annotations

import ast
import base64
import getpass
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeGuard

import nbformat
import pytest
from nbclient import NotebookClient

_notebooks: Any = nbformat  # it has no types
FOLDER = Path(__file__).parent.parent / "notebooks"
NAMES = ("audit_privacy_budgets.ipynb", "compare_kernels.ipynb", "dp_fair_training.ipynb")
LARGEST = 1_500_000  # bytes
LEAST_WORDS = 10  # of a picture's description
LEAST_WIDTH = 600  # of a picture, in pixels
LEAST_NUMBERS = 5  # computed ones in an answer
ASKED = {"0.3", "2", "95"}  # numbers an answer may have typed: those of the question (bandwidth, noise, confidence)
ANSWER = re.compile(r"^## The answer", re.MULTILINE)
# Absolute paths of a machine, wherever they stand; the ledger's relative sqlite:///runs/… is none.
PATH = re.compile(r"(?<![\w.:/-])/(?:home|root|tmp|Users|work|usr|opt|var|mnt|private)/|[A-Z]:\\\\|site-packages")


def _read(name: str) -> Any:
    return _notebooks.read(FOLDER / name, as_version=4)


def _code(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _pictures(notebook: Any) -> Iterator[tuple[int, Any]]:
    """(number of the cell, output) of every picture."""
    for number, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                yield number, output


def _problems(notebook: Any) -> list[str]:
    """What a reader of the committed notebook would miss or should not see."""
    found = []
    counts = [cell.execution_count for cell in _code(notebook)]
    if counts != list(range(1, len(counts) + 1)):
        found.append(f"cells were not executed once each in their order: {counts}")
    for number, cell in enumerate(notebook.cells):
        outputs = cell.get("outputs", [])
        if any(output.output_type == "error" for output in outputs):
            found.append(f"cell {number} ended in an error")
        if any(output.get("name") == "stderr" for output in outputs):
            found.append(f"cell {number} has warnings on the page")
        drawn = [output for output in outputs if "image/png" in output.get("data", {})]
        if "show(" in cell.source and "def show(" not in cell.source and not drawn:
            found.append(f"cell {number} should show a picture")
    for number, output in _pictures(notebook):
        words = output.metadata.get("image/png", {}).get("alt", "").split()
        if len(words) < LEAST_WORDS:
            found.append(f"the picture of cell {number} is not described")
        after = notebook.cells[number + 1] if number + 1 < len(notebook.cells) else None
        if after is None or after.cell_type != "markdown" or not re.match(r"\*Figure \d+\. .+\*", after.source):
            found.append(f"the picture of cell {number} has no caption below it")
    return found


def _is_text_with_values(node: ast.AST) -> TypeGuard[ast.JoinedStr]:
    """Whether it is the answer's f-string; formats inside one are short f-strings of their own."""
    return isinstance(node, ast.JoinedStr) and len(node.values) > LEAST_NUMBERS


def test_there_is_one_for_each_of_the_three_users() -> None:
    assert tuple(sorted(path.name for path in FOLDER.glob("*.ipynb"))) == NAMES


# those that train take a while, so one of the three runs among the quick tests
@pytest.mark.parametrize(
    "name", [NAMES[1], *(pytest.param(name, marks=pytest.mark.slow) for name in (NAMES[0], NAMES[2]))]
)
# jupyter_client's own sockets are closed late; nothing of ours
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_notebook_runs(name: str, tmp_path: Path) -> None:
    notebook = _read(name)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert _problems(notebook) == []
    # what it writes is in the one folder for runs, which is not committed
    assert {path.name for path in tmp_path.iterdir()} <= {"runs"}


@pytest.mark.parametrize("name", NAMES)
def test_committed_outputs_are_complete(name: str) -> None:
    notebook = _read(name)
    _notebooks.validate(notebook)
    assert _problems(notebook) == []
    assert len(list(_pictures(notebook))) >= 2


@pytest.mark.parametrize("name", NAMES)
def test_pictures_are_large_enough_to_read(name: str) -> None:
    for number, output in _pictures(_read(name)):
        width, height = struct.unpack(">II", base64.b64decode(output.data["image/png"])[16:24])  # PNG's first chunk
        assert width >= LEAST_WIDTH, (number, width)
        assert height >= LEAST_WIDTH / 3, (number, height)


@pytest.mark.parametrize("name", NAMES)
def test_committed_notebook_tells_nothing_about_the_machine(name: str) -> None:
    path = FOLDER / name
    assert path.stat().st_size < LARGEST
    notebook = _read(name)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            output.get("data", {}).pop("image/png", None)
    assert PATH.findall(_notebooks.writes(notebook)) == []
    outputs = str([cell.get("outputs", []) for cell in notebook.cells])
    assert not re.search(rf"\b{re.escape(getpass.getuser())}\b", outputs)


@pytest.mark.parametrize("name", NAMES)
def test_it_begins_with_a_persons_question_and_ends_with_computed_numbers(name: str) -> None:
    notebook = _read(name)
    first = notebook.cells[0].source
    assert first.startswith("# ")
    assert re.search(r"^\*I .+\*\*.+\?.*\*\*\*$|^\*I .+\*\*I must show .+\*\*\*$", first, re.MULTILINE)
    heading = max(n for n, cell in enumerate(notebook.cells) if ANSWER.search(cell.source))
    (cell,) = [cell for cell in notebook.cells[heading:] if cell.cell_type == "code"]
    (text,) = [output.data["text/markdown"] for output in cell.outputs if "text/markdown" in output.get("data", {})]
    (template,) = [node for node in ast.walk(ast.parse(cell.source)) if _is_text_with_values(node)]
    values = [part for part in template.values if isinstance(part, ast.FormattedValue)]
    typed = "".join(str(part.value) for part in template.values if isinstance(part, ast.Constant))
    assert len(values) >= LEAST_NUMBERS
    assert len(re.findall(r"\d+", text)) >= LEAST_NUMBERS
    assert set(re.findall(r"\d+(?:\.\d+)?", typed)) <= ASKED
    assert "assert" in "".join(c.source for c in _code(notebook))


def test_the_checks_of_this_file_find_what_they_should() -> None:
    notebook = _read(NAMES[0])
    number, output = next(_pictures(notebook))
    output.metadata["image/png"]["alt"] = "a picture"
    notebook.cells[number + 1].source = "And so on."
    _code(notebook)[2].execution_count = 7
    notebook.cells[-2].outputs = [
        _notebooks.from_dict({"output_type": "error", "ename": "E", "evalue": "no", "traceback": []})
    ]
    assert [problem.split(": ")[0] for problem in _problems(notebook)] == [
        "cells were not executed once each in their order",
        f"cell {len(notebook.cells) - 2} ended in an error",
        f"the picture of cell {number} is not described",
        f"the picture of cell {number} has no caption below it",
    ]
    found = [bool(PATH.search(text)) for text in ("in /home/x/y", "/tmp/a", "sqlite:///runs/audit", "a/tmp/b", "1/2")]
    assert found == [True, True, False, False, False]
