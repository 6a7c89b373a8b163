"""No command runs code of the current folder because it is named like a package; a configured module may be there."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(sys.executable).with_name("privfair")
NAMES = (
    "jinja2", "torch", "json", "numpy", "scipy", "pandas", "rich", "typer", "click", "pydantic", "tomllib", "yaml",
    "selectors", "struct", "multiprocessing", "concurrent", "csv", "random", "secrets", "hashlib", "sqlite3",
    "sqlalchemy", "matplotlib", "plotly", "opacus", "tenseal", "flwr", "ray", "opendp", "pyarrow", "psycopg",
    "accountant", "sitecustomize", "usercustomize", "privfair_extra", "markupsafe", "cryptography",
)  # fmt: skip

pytestmark = pytest.mark.slow  # some commands need what those before them left, and each starts a process


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of data in which somebody has left files with the names of packages."""
    where = tmp_path_factory.mktemp("planted")
    for name in NAMES:
        planted = f'import os\nos.close(os.open({str(where / "ran")!r} + "-{name}", os.O_CREAT | os.O_WRONLY))\n'
        (where / f"{name}.py").write_text(planted + f'raise SystemExit("planted {name} was executed")\n')
    draw = random.Random(1)
    rows = [f"{draw.randint(1, 9)},{draw.choice('FM')},{draw.choice('ns')},{draw.choice('01')}" for _ in range(120)]
    (where / "people.csv").write_text("\n".join(["age,sex,branch,hired", *rows]) + "\n")
    return where


def run(folder: Path, *arguments: str) -> str:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(PROGRAM), *arguments], cwd=folder, env=variables, capture_output=True, text=True, check=False
    )
    assert sorted(path.name for path in folder.glob("ran-*")) == []
    assert done.returncode == 0 or arguments == ("doctor",), done.stderr  # doctor tells what does not work here
    return done.stdout


DATA = "--set data.name=csv --set data.path=people.csv --set data.label=hired --set data.sensitive=sex"
ROUNDS = "--set federation.rounds=2"


@pytest.mark.parametrize(
    "words",
    [
        "--version",
        "--help",
        "init people.csv --force",
        "data list",
        "data check csv --set path=people.csv --set label=hired --set sensitive=sex",
        f"train {DATA} {ROUNDS} --out plain",
        "report plain",
        f"train {DATA} {ROUNDS} --set privacy.epsilon=40 --out private",
        "audit --figure burn.png",
        "budget set others --epsilon 3 --delta 1e-6",
        "budget show",
        "calibrate --rounds 3 --epsilon 3 --delta 1e-5 --sampling-rate 0.1",
        "kernels --repeats 20 --out kernels",
        "keys new keys",
        f"sweep {DATA} {ROUNDS} --lambdas 0,1 --seeds 2 --workers 2 --out sweep",
        "doctor",
    ],
)
def test_no_command_runs_what_lies_in_the_folder(folder: Path, words: str) -> None:
    run(folder, *words.split())


def test_a_module_that_is_configured_may_be_in_the_folder_and_only_after_what_is_installed(folder: Path) -> None:
    (folder / "own_model.py").write_text(
        "import torch\nimport pandas\nimport own_layers\n\ndef make(features):\n"
        "    import own_later\n    return own_later.linear(features)\n"
    )
    (folder / "own_layers.py").write_text(
        "import torch\n\ndef linear(features):\n    return torch.nn.Linear(features, 1)\n"
    )
    (folder / "own_later.py").write_text("from own_layers import linear\n")
    for place, command in (("own", "train"), ("owns", "sweep --lambdas 0,1 --seeds 1 --workers 2")):
        words = f"{command} {DATA} {ROUNDS} --set model.name=own_model:make --json --out {place}"
        assert json.loads(run(folder, *words.split()))
