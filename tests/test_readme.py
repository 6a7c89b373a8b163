"""What the README shows in Python runs as it stands; its configurations are right.

Its commands are checked in tests/docs/test_commands.py, those of the tutorial and the guides are run.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from privfair.config import Config

README = Path(__file__).parent.parent / "README.md"


def test_python_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, str(README), "exec"), {})


def test_configurations_are_right() -> None:
    blocks = re.findall(r"```toml\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) >= 3
    for block in blocks:
        Config.build(tomllib.loads(block))


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README.read_text(encoding="utf-8"))
    assert targets
    for target in targets:
        if "://" not in target:
            assert (README.parent / target).exists(), target
