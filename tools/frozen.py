"""Seeded runs whose results must not change while the code around them does.

    python -m tools.frozen record [RUN …]           write tests/frozen/recorded anew, from the present code
    python -m tools.frozen compare COMMIT [RUN …]   the present code beside that of a commit, bit for bit

`compare` checks the commit out into a temporary git worktree and runs every frozen configuration with its packages and
with the present ones (uncommitted changes included), on this machine and with this interpreter. It says for each run
whether model, history, numbers and keys of privacy.json, final figures, bytes and rows of the ledger are equal to the
last bit, and exits with 1 unless all are; opened CKKS sums carry random noise, and are compared to their precision.
The commit needs no folder tools/: the runs are described by the present one, and use the public face only.

One core takes half a minute a side without Flower (--fast), and two minutes with it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools import frozen_run
from tools.frozen_run import APPROXIMATE, ROOT, SLOW

RECORDED = ROOT / "tests" / "frozen" / "recorded"
DIGITS = 9  # of recorded numbers; they are compared to CLOSE

CLOSE = 1e-6  # of recorded values, relative or absolute: another machine rounds differently

# CKKS: a round's opened sum has flooding noise of standard deviation 2⁻¹⁵ · range · weights on every parameter, 3.1e-5
# in the frozen run. Two runs of three rounds differ by 7.5e-5 in a parameter; 13 times that is allowed, since a
# round's training starts from the noise of the one before. Losses are sums over a few parameters; figures that count
# decisions jump when a record is at the boundary, and only their keys are compared.
CLOSE_OPENED = {"model": 1e-3, "history": 1e-2}
CONTINUOUS = ("train_loss", "train_mmd2", "train_objective", "test_loss", "test_mmd2", "test_objective", "round")


def differences(one: Any, other: Any, *, tolerance: float, path: str = "") -> list[str]:
    """Where two records differ: in keys, kinds, texts and whole numbers at all, in floats by more than the tolerance.

    A tolerance of 0 is bit for bit.
    """
    if isinstance(one, dict) and isinstance(other, dict):
        found = [f"{path}.{key}: only in one of them" for key in sorted(set(one) ^ set(other))]
        for key in one:
            if key in other:
                found += differences(one[key], other[key], tolerance=tolerance, path=f"{path}.{key}")
        return found
    if isinstance(one, list) and isinstance(other, list):
        if len(one) != len(other):
            return [f"{path}: {len(one)} and {len(other)} entries"]
        pairs = enumerate(zip(one, other, strict=True))
        return [d for i, (a, b) in pairs for d in differences(a, b, tolerance=tolerance, path=f"{path}[{i}]")]
    if isinstance(one, float) and isinstance(other, float) and tolerance:
        if math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance) or (math.isnan(one) and math.isnan(other)):
            return []
    elif type(one) is type(other) and repr(one) == repr(other):  # of floats: 0.0 is not −0.0, and NaN is NaN
        return []
    return [f"{path}: {one!r} and {other!r}"]


def compare_records(name: str, one: dict[str, Any], other: dict[str, Any], *, tolerance: float) -> list[str]:
    """Where two records of a run differ, those of an approximate scheme to its precision."""
    if "error" in one or "error" in other:
        return [f"{side['error']}" for side in (one, other) if "error" in side]
    if name not in APPROXIMATE:
        return differences(one, other, tolerance=tolerance)
    found = [f".{part}: only in one of them" for part in sorted(set(one) ^ set(other))]
    for part in set(one) & set(other):
        mine, theirs = one[part], other[part]
        if part == "history":
            mine, theirs = [_continuous(row) for row in mine], [_continuous(row) for row in theirs]
        elif part == "figures":
            mine, theirs = _keys(mine), _keys(theirs)
        found += differences(mine, theirs, tolerance=CLOSE_OPENED.get(part, tolerance), path=f".{part}")
    return found


def _continuous(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value if key in CONTINUOUS else None for key, value in row.items()}


def _keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _keys(inner) for key, inner in value.items()}
    return [_keys(inner) for inner in value] if isinstance(value, list) else None


def carried_out(tree: Path, names: Sequence[str]) -> dict[str, Any]:
    """What is frozen of these runs, by name, as made by the packages in `tree`, in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="privfair-frozen-") as folder:
        output = Path(folder) / "records.json"
        script = str(Path(frozen_run.__file__).resolve())
        environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, script, str(tree), str(output), *names]
        subprocess.run(command, env=environment, cwd=folder, check=True)
        found: dict[str, Any] = json.loads(output.read_text())
        return found


def write_record(name: str, record: dict[str, Any]) -> None:
    """Keep a record for the tests: one line for each of its parts."""
    lines = [f"{json.dumps(part)}: {json.dumps(_rounded(value))}" for part, value in record.items()]
    RECORDED.mkdir(exist_ok=True)
    (RECORDED / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def read_record(name: str) -> dict[str, Any]:
    """What `write_record` kept."""
    found: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text())
    return found


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def record(names: Sequence[str]) -> int:
    """Write the records of these runs anew; 1 if one of them failed, whose record stays as it was."""
    failed = 0
    for name, found in carried_out(ROOT, names).items():
        if "error" in found:
            print(f"{name}: {found['error']}")
            failed = 1
        else:
            write_record(name, found)
            print(f"{name}: written")
    return failed


def compare(commit: str, names: Sequence[str]) -> int:
    """Print for each run whether the commit and the present code agree; 0 if they do in all."""
    with tempfile.TemporaryDirectory(prefix="privfair-commit-") as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            print(f"{commit}:", file=sys.stderr, flush=True)
            before = carried_out(tree, names)
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)
    print("present:", file=sys.stderr, flush=True)
    now = carried_out(ROOT, names)
    failed = 0
    for name in names:
        found = compare_records(name, before[name], now[name], tolerance=0.0)
        failed += bool(found)
        equal = "equal to the precision of CKKS" if name in APPROXIMATE else "equal, bit for bit"
        print(f"{name}: {equal if not found else 'DIFFERENT'}")
        for line in found[:10]:
            print(f"    {line}")
        if len(found) > 10:
            print(f"    … and {len(found) - 10} more")
    print(f"{len(names) - failed} of {len(names)} runs are equal")
    return 1 if failed else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.frozen", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, about in (("record", "write the records anew"), ("compare", "a commit beside the present code")):
        command = commands.add_parser(name, help=about)
        if name == "compare":
            command.add_argument("commit", help="anything that git can check out")
        command.add_argument("runs", nargs="*", metavar="RUN", help="only these; by default all")
        command.add_argument("--fast", action="store_true", help="without Flower")
    given = parser.parse_args(arguments)
    known = frozen_run.names()
    unknown = [name for name in given.runs if name not in known]
    if unknown:
        parser.error(f"no run has the name {unknown[0]!r}; known: {', '.join(known)}")
    names = given.runs or [name for name in known if not (given.fast and name in SLOW)]
    return record(names) if given.command == "record" else compare(given.commit, names)


if __name__ == "__main__":
    sys.exit(main())
