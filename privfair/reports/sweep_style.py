"""How series look in the figures of a sweep: colours, markers and lines that colour-blind readers tell apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Okabe & Ito's palette without its yellow, which is too pale on white. Markers and lines say it again.
BLACK, ORANGE, SKY, GREEN, BLUE, RED, PURPLE = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
_BY_METHOD = {
    "mmd_fedavg": (BLUE, "o"),
    "centralized": (BLACK, "s"),
    "local_fairness": (RED, "^"),
    "fairfed": (GREEN, "D"),
    "fedfb": (PURPLE, "v"),
    "agnostic": (ORANGE, "P"),
    "fedavg": (SKY, "X"),
}
_IN_ORDER = ((BLUE, "o"), (RED, "^"), (GREEN, "D"), (BLACK, "s"), (PURPLE, "v"), (ORANGE, "P"), (SKY, "X"))
_LINES = ("-", "--", ":", "-.")


@dataclass(frozen=True)
class Style:
    """Colour, marker and line of one series."""

    colour: str
    marker: str
    line: str
    place: int  # in the legend: the first is drawn on top, later ones with larger marks, so that equal lines all show

    @property
    def size(self) -> float:
        """The diameter of its marks, in points."""
        return 4.5 + 1.2 * min(self.place, 4)

    @property
    def height(self) -> float:
        """Where it is in the stack of lines."""
        return 3.0 - 0.01 * self.place


def styles(methods: Mapping[str, str]) -> dict[str, Style]:
    """The style of every series, from the method of each.

    Colours belong to methods, the same in every figure; series of one method differ by their line. Where all series
    are of one method, they have colours of their own.
    """
    if len(set(methods.values())) == 1 and len(methods) > 1:
        return {
            name: Style(*_IN_ORDER[i % len(_IN_ORDER)], _LINES[i // len(_IN_ORDER) % len(_LINES)], i)
            for i, name in enumerate(methods)
        }
    seen: dict[str, int] = {}
    found: dict[str, Style] = {}
    for name, method in methods.items():
        number = seen.get(method, 0)
        seen[method] = number + 1
        found[name] = Style(*_BY_METHOD[method], _LINES[number % len(_LINES)], len(found))
    return found


def tidy(axis: Any, x: str, y: str, title: str = "") -> None:
    """Labels, a pale grid behind the data, no frame on the sides without an axis."""
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    if title:
        axis.set_title(title, fontsize=11, fontweight="bold")
    axis.grid(color="0.92", linewidth=0.8)
    axis.set_axisbelow(True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def legend_below(figure: Any, axis: Any, note: str) -> None:
    """One legend for all panels under them, with a line that explains the marks."""
    handles, labels = axis.get_legend_handles_labels()
    columns = min(len(labels), 6 if figure.get_figwidth() > 12 else 4) or 1
    figure.legend(
        handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=9, title=note,
        title_fontproperties={"size": 8.5},
    )  # fmt: skip


def save(figure: Any, stem: Path) -> list[Path]:
    """Write the figure as PNG and SVG."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg")]
    for path in paths:
        # No date in the file: the same results give the same figure.
        metadata: dict[str, Any] = {"Date": None} if path.suffix == ".svg" else {}
        figure.savefig(path, dpi=140, metadata=metadata)
    return paths


def new_figure(panels: int, *, width: float = 5.2, height: float = 4.6, rows: int = 1) -> tuple[Any, Sequence[Any]]:
    """(figure, axes): panels side by side; drawn by Agg, without a screen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = -(-panels // rows)
    figure = Figure(figsize=(width * columns + (1.6 if columns == 1 else 0.4), height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False)
    return figure, list(axes.flat)
