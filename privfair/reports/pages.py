"""Pages for people: one HTML file each, with everything in it that it needs. Nothing is fetched from anywhere."""

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

FOLDER = Path(__file__).parent / "html"
MARK = "privfair page"  # what the files say of themselves, so that no other file is overwritten


def render_page(template: str, *, title: str, plots: bool, scripts: Sequence[str] = (), **context: Any) -> str:
    """The text of a whole page: `template` (it extends base.html) with the context, styles and scripts inside.

    plots: with Plotly's own script and plots.js, which draws every figure made by the macro `plot` of parts.html.
    scripts: names of further scripts in the folder of the templates, run in this order after the page is there.
    """
    names = [*(["plots.js"] if plots else []), *scripts]
    return (
        _environment()
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
    """The number of bytes written. A file that is there already is replaced only if it is a page of ours."""
    from privfair.storage import write_bytes

    text = page.encode()
    require_ours(path, option=option)
    try:
        write_bytes(path, text)
    except OSError as error:
        raise InputError(option, f"must be a file that can be written ({error.strerror})", str(path)) from None
    return len(text)


def require_ours(path: Path, *, option: str = "--out") -> None:
    """Nothing, unless the file is there already and is no page of ours."""
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
def _environment() -> Environment:
    """Jinja with every value escaped, and an error for one that is missing."""
    environment = Environment(
        loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    # browsers cannot read NaN, and the order of a figure's parts is meant
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "sort_keys": False}
    return environment


def _asset(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _plotly() -> str:
    """Plotly's script as its Python package brings it; read as a file, because importing the package is slow."""
    found = importlib.util.find_spec("plotly")
    if found is None or found.origin is None:
        raise InputError("plots", "need the package plotly", "none", "Install it with: pip install plotly")
    return (Path(found.origin).parent / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
