"""Reads pages as a parser does: texts, attributes and tables."""

from __future__ import annotations

from html.parser import HTMLParser


class Page(HTMLParser):
    """The parts of a page that tests look at."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.values: list[float] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.numbers: dict[str, list[list[float | None]]] = {}
        self._inside: list[str] = []
        self._caption = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        self.tags.append((tag, known))
        if tag not in ("meta", "link", "img", "br"):
            self._inside.append(tag)
        value = known.get("data-value")
        if value is not None:
            self.values.append(float(value))
        if tag == "table":
            self._caption = ""
        if tag == "tr":
            self.tables.setdefault(self._caption, []).append([])
            self.numbers.setdefault(self._caption, []).append([])
        if tag in ("th", "td"):
            self.tables[self._caption][-1].append("")
            self.numbers[self._caption][-1].append(None if value is None else float(value))

    def handle_endtag(self, tag: str) -> None:
        if tag in self._inside:
            while self._inside.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if "script" in self._inside or "style" in self._inside:
            return
        self.words.append(data)
        if "caption" in self._inside:
            self._caption += data
        elif self.tables.get(self._caption) and ("td" in self._inside or "th" in self._inside):
            self.tables[self._caption][-1][-1] += data

    @property
    def text(self) -> str:
        """All words, with single spaces."""
        return " ".join(" ".join(self.words).split())

    def rows(self, caption: str) -> list[list[str]]:
        """The rows of the table whose caption begins like that, the head first."""
        found = [rows for name, rows in self.tables.items() if name.startswith(caption)]
        assert len(found) == 1, (caption, list(self.tables))
        return [[" ".join(cell.split()) for cell in row] for row in found[0]]

    def exact(self, caption: str) -> list[list[float | None]]:
        """The exact numbers behind the fields of that table."""
        return next(rows for name, rows in self.numbers.items() if name.startswith(caption))
