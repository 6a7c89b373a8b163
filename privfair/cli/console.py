"""The terminal: what comes from data or from a configuration is printed as it is, and does nothing.

Names of groups, columns, clients and files are anybody's text. Rich reads words in square brackets as markup: `[red]`
would vanish, and `[/nope]` would end a command whose run is done. Such text goes through `escape` where it is printed,
and brackets that are no markup are printed as they stand, never an error. Control characters would let a name move
the cursor, set the window's title or hide a line: they are shown as symbols.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import rich.console
from rich.errors import MarkupError
from rich.markup import escape
from rich.segment import Segment
from rich.text import Text

__all__ = ["Console", "escape", "visible"]

_KEPT = "\n\t"
_SYMBOLS = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in _KEPT} | {0x7F: "␡"}
_SYMBOLS |= dict.fromkeys(range(0x80, 0xA0), "�")  # C1: control sequences of one byte
_SYMBOLS |= dict.fromkeys((0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)), "�")  # direction


def visible(text: str) -> str:
    """The text with a symbol for every character that a terminal would obey instead of showing it."""
    return text.translate(_SYMBOLS)


class Console(rich.console.Console):
    """Rich's console for text of any origin."""

    def __init__(self, **options: Any) -> None:
        """Nothing in a text is coloured or replaced because of what it looks like."""
        super().__init__(**{"highlight": False, "emoji": False, **options})

    def render(
        self, renderable: rich.console.RenderableType, options: rich.console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The segments of something, its control characters as symbols."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))

    def render_str(self, text: str, **options: Any) -> Text:
        """The text with its markup, or as it stands where it has brackets that are no markup."""
        try:
            return super().render_str(visible(text), **options)
        except MarkupError:
            return super().render_str(visible(text), **{**options, "markup": False})
