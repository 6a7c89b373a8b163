"""Meters of the architecture: how many files, how deep, how tangled, and how many files one round runs through.

    python -m tools.meters            # the tree: files, lines, imports
    python -m tools.meters --runs     # and what a plain run, a private run and one private round execute

Every meter has a goal; the command exits 1 if one is missed. Where a goal is not reached yet, `most` is what was
reached: `tests/test_meters.py` holds that no meter gets worse than its goal, or than what was reached.
"""

from __future__ import annotations

import argparse
import ast
import json
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("privfair", "accountant")


@dataclass(frozen=True)
class Meter:
    """One figure, its goal, and, where that is not reached yet, the most that was reached."""

    name: str
    value: float
    goal: float
    most: float = 0.0

    @property
    def kept(self) -> bool:
        """Whether it is no worse than it was."""
        return self.value <= max(self.goal, self.most)

    @property
    def met(self) -> bool:
        """Whether the goal is reached."""
        return self.value <= self.goal


def sources() -> dict[str, Path]:
    """Every module of the two packages by its dotted name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


def imports(modules: Mapping[str, Path], *, lazy: bool) -> dict[str, set[str]]:
    """Which modules each module imports when it is loaded; with `lazy`, also inside functions and for types alone."""
    found = {}
    for name, path in modules.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        nodes = ast.walk(tree) if lazy else iter(tree.body)
        found[name] = {other for node in nodes for other in _imported(node, modules)} - {name}
    return found


def _imported(node: ast.AST, modules: Mapping[str, Path]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in modules)
    elif isinstance(node, ast.ImportFrom) and node.module in modules:
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            yield inner if inner in modules else str(node.module)


def depth(graph: Mapping[str, set[str]]) -> int:
    """The longest chain of modules that load each other; a cycle raises."""

    @cache
    def below(name: str) -> int:
        return 1 + max((below(other) for other in graph[name]), default=0)

    return max(below(name) for name in graph)


def mutual_pairs(graph: Mapping[str, set[str]]) -> list[tuple[str, str]]:
    """Pairs of packages that import each other, inside functions too."""

    def package(name: str) -> str:
        first, _, rest = name.partition(".")
        return first if first == "accountant" else ".".join([first, *rest.split(".")[:1]]).rstrip(".")

    edges = {(package(a), package(b)) for a, others in graph.items() for b in others if package(a) != package(b)}
    return sorted((a, b) for a, b in edges if a < b and (b, a) in edges)


def static_meters() -> list[Meter]:
    """The meters of the tree."""
    modules = sources()
    sizes = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in modules.items()}
    everything, loaded = imports(modules, lazy=True), imports(modules, lazy=False)
    importers = Counter(other for others in everything.values() for other in others)
    texts = [path.read_text(encoding="utf-8") for path in modules.values()]
    return [
        Meter("files", len(modules), 230),
        Meter("lines of the largest file", max(sizes.values()), 700),
        Meter("lines", sum(sizes.values()), 37_000, most=54_000),
        Meter("modules imported once", sum(importers[name] == 1 for name in modules), 45),
        Meter("import depth", depth(loaded), 18),
        Meter("packages that import each other", len(mutual_pairs(everything)), 0),
        Meter("files that name TrainRequest", sum("TrainRequest" in text for text in texts), 9),
        Meter("files that name EmbeddingsRequest", sum("EmbeddingsRequest" in text for text in texts), 5),
    ]


PLAIN: dict[str, Any] = {"data": {"name": "synthetic"}, "federation": {"rounds": 2}}
PRIVATE: dict[str, Any] = {
    "data": {"name": "synthetic"},
    "federation": {"rounds": 2},
    "privacy": {"epsilon": 3.0, "delta": 1e-3},
}


@contextmanager
def executed(files: set[str]) -> Iterator[None]:
    """Collect the files of the two packages in which a function is called."""
    roots = tuple(str(ROOT / package) for package in PACKAGES)

    def called(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name != "<module>" and frame.f_code.co_filename.startswith(roots):
            files.add(frame.f_code.co_filename)

    sys.setprofile(called)
    try:
        yield
    finally:
        sys.setprofile(None)


def run_meters() -> list[Meter]:
    """The meters of whole runs, on the built-in synthetic federation."""
    from privfair.runs import loop

    plain, private, one_round = set[str](), set[str](), set[str]()
    _train(PLAIN)  # once before, so that what is loaded lazily is there
    with executed(plain):
        _train(PLAIN)
    with executed(private):
        _train(PRIVATE)
    real: Callable[..., Any] = loop.run_round

    def watched(*args: Any) -> Any:
        with executed(one_round):
            return real(*args)

    loop.run_round = watched  # type: ignore[assignment]
    try:
        _train(PRIVATE)
    finally:
        loop.run_round = real  # type: ignore[assignment]
    return [
        Meter("files that a plain run executes", len(plain), 50, most=57),
        Meter("files that a private run executes", len(private), 85, most=88),
        Meter("files that one private round executes", len(one_round), 35, most=40),  # with masks, the default
    ]


def _train(config: dict[str, Any]) -> None:
    import privfair
    from accountant.ledger.machine_state import not_remembered

    with tempfile.TemporaryDirectory() as folder, not_remembered():
        run = {"ledger": f"sqlite:///{folder}/ledger.sqlite", "out": f"{folder}/run"}
        privfair.train({**config, "run": run})


def main() -> int:
    """Print all meters; 1 where a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m tools.meters", description=__doc__)
    parser.add_argument("--runs", action="store_true", help="also count the files that runs execute")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    given = parser.parse_args()
    meters = static_meters() + (run_meters() if given.runs else [])
    if given.json:
        print(json.dumps({meter.name: {"value": meter.value, "goal": meter.goal} for meter in meters}))
    else:
        for meter in meters:
            mark = "ok" if meter.met else "NO"
            print(f"{mark}  {meter.name:42} {meter.value:>8,.0f}   goal: at most {meter.goal:,.0f}")
        sizes = [len(path.read_text(encoding="utf-8").splitlines()) for path in sources().values()]
        print(f"    median lines of a file {statistics.median(sizes):,.0f}")
    return 0 if all(meter.met for meter in meters) else 1


if __name__ == "__main__":
    sys.exit(main())
