"""Waiting for a page. Playwright's own way evaluates text inside the page, which our pages forbid."""

from __future__ import annotations

import time
from typing import Any


def wait_until(page: Any, expression: str, seconds: float = 60.0) -> None:
    """Return when the expression is true in the page."""
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"not within {seconds:g} s: {expression}"
        page.wait_for_timeout(50)
