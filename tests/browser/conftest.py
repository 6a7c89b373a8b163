"""Pages that tell what went wrong in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

LOCAL = ("file:", "data:", "blob:")


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a file; at the end nothing may have been said on its console, failed, or been asked of any server."""
    troubles: list[str] = []
    contexts = []

    def opened(path: Path, *, width: int = 1200, dark: bool = False) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("console", lambda message: troubles.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: troubles.append(f"error: {error}"))
        page.on("request", lambda r: None if r.url.startswith(LOCAL) else troubles.append(f"request: {r.url}"))
        page.goto(path.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert troubles == []
