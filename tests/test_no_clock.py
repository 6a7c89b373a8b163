"""No test depends on how fast the machine is: hypothesis has no deadlines, and no test sets one."""

from __future__ import annotations

import ast
from pathlib import Path

from hypothesis import settings


def test_hypothesis_has_no_deadline() -> None:
    assert settings.default is not None
    assert settings.default.deadline is None
    assert settings().deadline is None


def test_no_test_sets_one() -> None:
    set_here = []
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", ""))
            if called not in ("settings", "register_profile"):
                continue
            deadlines = [word.value for word in node.keywords if word.arg == "deadline"]
            if any(not (isinstance(value, ast.Constant) and value.value is None) for value in deadlines):
                set_here.append(f"{path.name}:{node.lineno}")
    assert set_here == []
