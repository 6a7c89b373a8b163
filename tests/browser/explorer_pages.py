"""A real browser with the kernel explorer in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
DONE = 'html[data-draws="200"], html[data-draws="none"]'


@contextmanager
def open_browser() -> Iterator[Any]:
    """Chromium without a window."""
    from playwright.sync_api import sync_playwright

    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.fail("these tests need a browser: install Chromium (Debian: apt install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def open_page(browser: Any, path: Path, view: str = "", **options: Any) -> Any:
    """The page at this view, when all its draws are done; what goes wrong in it is in `page.troubles`."""
    page = browser.new_page(**options)
    page.troubles = []
    page.on("console", lambda message: page.troubles.append(message.text))
    page.on("pageerror", lambda error: page.troubles.append(str(error)))
    page.on(
        "request",
        lambda request: page.troubles.append(request.url) if not request.url.startswith(("file:", "data:")) else None,
    )
    page.set_default_timeout(120_000)
    page.goto(path.as_uri() + view)
    page.wait_for_selector(DONE, state="attached")
    return page
