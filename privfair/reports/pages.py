"""Pages for people: one HTML file each that contains everything it needs and fetches nothing."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from accountant.errors import InputError
from privfair import __version__
from privfair.util import write_bytes

FOLDER = Path(__file__).parent / "html"
MARK = "privfair page"  # every page carries it, so that no other file is overwritten


def render_page(template: str, *, title: str, plots: bool, scripts: Sequence[str] = (), **context: Any) -> str:
    """The text of a whole page: `template` (it extends base.html) with the context, styles and scripts inside.

    plots: with Plotly's own script and plots.js, which draws every figure made by the macro `plot` of parts.html.
    scripts: names of further scripts in the folder of the templates, run in this order after the page is loaded.
    """
    names = [*(["plots.js"] if plots else []), *scripts]
    return (
        _templates()
        .get_template(template)
        .render(
            title=title,
            mark=MARK,
            version=__version__,
            style=Markup(_asset("style.css")),
            plotly=Markup(_plotly()) if plots else None,
            scripts=[Markup(_asset(name)) for name in names],
            **context,
        )
    )


def write_page(page: str, path: Path, *, option: str = "--out") -> int:
    """The number of bytes written. An existing file is replaced only if privfair wrote it."""
    text = page.encode()
    require_ours(path, option=option)
    try:
        write_bytes(path, text)
    except OSError as error:
        raise InputError(option, f"must be a file that can be written ({error.strerror})", str(path)) from None
    return len(text)


def require_ours(path: Path, *, option: str = "--out") -> None:
    """Raise if the file exists and is not a page that privfair wrote."""
    if path.exists() and not is_page(path):
        rule = "must be a new file, or a page to be replaced"
        raise InputError(option, rule, str(path), "It was not written by privfair; choose another name.")


def is_page(path: Path) -> bool:
    """Whether the file was written by `write_page`."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return f'<meta name="generator" content="{MARK}'.encode() in file.read(2000)


@cache
def _templates() -> Environment:
    """Jinja that escapes every value and raises on a missing one."""
    environment = Environment(
        loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    # browsers cannot read NaN, and the order of a figure's parts matters
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "sort_keys": False}
    return environment


def _asset(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _plotly() -> str:
    """Plotly's script from its Python package; read as a file because importing the package is slow."""
    found = importlib.util.find_spec("plotly")
    if found is None or found.origin is None:
        raise InputError("plots", "need the package plotly", "none", "Install it with: pip install plotly")
    return (Path(found.origin).parent / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
