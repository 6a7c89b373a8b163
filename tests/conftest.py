"""What tests of several folders need."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# No test depends on how fast the machine is. Examples are new every time, but whether a change lands rests on the same.
settings.register_profile("privfair", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("privfair")

# Nothing that tests do is remembered in the user's own state folder, by subprocesses neither.
_STATE = tempfile.TemporaryDirectory(prefix="privfair-state-")
os.environ["PRIVFAIR_STATE"] = _STATE.name


@pytest.fixture(autouse=True, scope="module")
def _memory_of_a_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What this machine remembers of ledgers begins empty for every module's own fixtures."""
    with pytest.MonkeyPatch.context() as environment:
        folder = tmp_path_factory.mktemp("state")
        environment.setenv("PRIVFAIR_STATE", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def _memory_of_a_test(_memory_of_a_module: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A test knows the ledgers of its module's fixtures, and nothing of what other tests did."""
    with pytest.MonkeyPatch.context() as environment:  # its own: a test may undo what it patched
        folder = tmp_path_factory.mktemp("state")
        shutil.copytree(_memory_of_a_module, folder, dirs_exist_ok=True)
        environment.setenv("PRIVFAIR_STATE", str(folder))
        environment.setenv("PYTHONSAFEPATH", "")  # unset: `cli.main` sets it for the programs that it starts
        yield


BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")  # not longer: its event loop would be in the way of others
def browser() -> Iterator[Any]:
    """Chromium without a window."""
    from playwright.sync_api import sync_playwright

    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.fail("these tests need a browser: install Chromium (make chromium; Debian: apt install chromium)")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def begun_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are as if an earlier version had begun them: they may share noise without masks."""
    for module in ("privfair.runs.assembly", "privfair.runs.planned", "privfair.deployment.holder"):
        monkeypatch.setattr(f"{module}.require_new", lambda config: None)
