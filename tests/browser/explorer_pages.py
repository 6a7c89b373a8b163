"""The kernel explorer in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

DONE = 'html[data-draws="200"], html[data-draws="none"]'


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
