"""Pages for people: one HTML file each, with everything in it that it needs. Nothing is fetched from anywhere."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from accountant.errors import InputError
from privfair import __version__
from privfair.util import write_bytes

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
    from privfair.util import write_bytes

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


# ---- claims.md: what an experiment says about each claim of the paper, or about what was expected.


def write_claims(
    about: Mapping[str, Any], claims: Sequence[Mapping[str, Any]], areas: Mapping[str, Any] | None, path: Path
) -> Path:
    """The claims with verdicts, numbers and rules, the areas of the frontiers if there are any, and what was run."""
    runs = about["runs"]
    failed = f", {runs['failed']} failed" if runs["failed"] else ""
    again = f", {runs['continued']} of them from an earlier call" if runs["continued"] else ""
    lines = [
        f"# {about['title']}",
        "",
        f"{_origin(about)} Command: `{about['command']}`.",
        f"{runs['done']} of {runs['all']} runs{failed}{again}; {runs['seconds']:.0f} s of computing, "
        f"{about['seconds']:.0f} s on the clock.",
        "",
        f"| {'claim of the paper' if about['paper'] else 'expectation'} | our runs | numbers | decided by |",
        "|---|---|---|---|",
        *(
            f"| {_cell(c['claim'])} | **{c['outcome']}** | {_cell(c['numbers'])} | {_cell(c['how'])} |"
            for c in claims
        ),
        "",
        "Differences are means over seeds, paired, with 95% t intervals; areas are hypervolumes with bootstrap "
        "intervals over seeds. Confirmed: the whole interval agrees with the claim; not confirmed: none of it does; "
        "undecided: a part of it does.",
        "",
        *(_areas(areas) if areas and areas["reference"] else []),
        *(f"- {note}" for note in about["notes"]),
        *(f"- failed: {failure}" for failure in about["failures"]),
    ]  # fmt: skip
    write_bytes(path, ("\n".join(lines).rstrip() + "\n").encode())
    return path


def _origin(about: Mapping[str, Any]) -> str:
    if about["paper"]:
        return f"Rychener, Kuhn & Hu (AISTATS 2025), {about['source']}."
    return "Beyond Rychener, Kuhn & Hu (AISTATS 2025); the claims are what was expected of it."


def _areas(areas: Mapping[str, Any]) -> list[str]:
    """The table of areas."""
    corner = areas["reference"]
    return [
        "| frontier | area it dominates | 95% interval | to the first | 95% interval |",
        "|---|---|---|---|---|",
        *(
            f"| {_cell(a['series'])} | {a['value']:.5f} | {_interval(a['interval'])} | "
            f"{a['difference_to_first']:+.5f} | {_interval(a['difference_interval'], '+')} |"
            for a in areas["series"]
        ),
        "",
        f"Areas are measured from accuracy {corner['accuracy']:.4f}, unfairness {corner['unfairness']:.4f} "
        f"({corner['origin']}).",
        "",
    ]


def _interval(interval: tuple[float, float] | None, sign: str = "") -> str:
    return "–" if interval is None else f"{interval[0]:{sign}.5f} … {interval[1]:{sign}.5f}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
