"""A reader of a page: does in one folder what the page says, in its order, and compares."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from privfair.config import Config
from tests.docs.blocks import ROOT, Block, commands, difference


class Session:
    """One folder, one namespace, one page."""

    def __init__(self, page: Path, folder: Path) -> None:
        """In an empty folder, beside the examples of a clone."""
        self.page, self.folder = page, folder
        self.namespace: dict[str, object] = {"__name__": "__page__"}
        self.printed: str | None = None
        shutil.copytree(ROOT / "examples", folder / "examples")

    def follow(self, block: Block) -> None:
        """Do what the block says."""
        if block.title is not None:
            (self.folder / block.title).write_text(block.text, encoding="utf-8")
        if block.kind == "toml":
            Config.build(tomllib.loads(block.text))
        elif block.kind == "python" and block.title is None:
            self._python(block)
            return
        elif block.kind == "sh":
            self._run(block, f"set -euo pipefail\n{block.text}")
        elif block.kind == "console":
            for command in commands(block):
                reported = self._run(block, command.text, fails=command.fails)
                self._compare(block, command.shown, reported, command.text)
        elif block.kind == "text" and block.title is None and self.printed is not None:
            self._compare(
                block, tuple(line for line in block.text.splitlines() if line.strip()), self.printed, "python"
            )
        self.printed = None

    def _python(self, block: Block) -> None:
        reported = io.StringIO()
        code = compile("\n" * block.line + block.text, str(self.page), "exec")
        with contextlib.redirect_stdout(reported):
            exec(code, self.namespace)
        self.printed = reported.getvalue()

    def _run(self, block: Block, script: str, *, fails: bool = False) -> str:
        words = ["bash", "-euo", "pipefail", "-c", script]
        done = subprocess.run(words, cwd=self.folder, env=_environment(), capture_output=True, text=True, check=False)
        reported = done.stderr + done.stdout
        assert (done.returncode != 0) == fails, (
            f"{self.page}:{block.line}: {script}\nexit {done.returncode}\n{reported}"
        )
        return reported

    def _compare(self, block: Block, shown: tuple[str, ...], printed: str, what: str) -> None:
        if shown:
            missing = difference(shown, printed)
            assert missing is None, f"{self.page}:{block.line}: {what}\nnot there: {missing}\nthere was:\n{printed}"


def _environment() -> dict[str, str]:
    """That of a person who has activated the environment of this clone."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PRIVFAIR_LEDGER", "COV_"))}
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    plain = {"COLUMNS": "88", "NO_COLOR": "1", "TERM": "dumb", "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
    return {**kept, "PATH": programs, "PYTHONPATH": str(ROOT), **plain}
