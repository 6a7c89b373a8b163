"""Figures of pages: what Plotly draws, what a reader who cannot see it reads instead, and the data as a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from markupsafe import Markup, escape

from accountant.audit import DatasetAudit, Point
from accountant.errors import InputError
from accountant.events import Unit
from privfair.numbers import Cell, count, epsilon_cell, percent, rate, rate_cell
from privfair.reports.audit_remarks import time_window


def right_guesses(epsilon: float, delta: float) -> float:
    """The largest share of right guesses: (e^ε + δ) / (e^ε + 1).

    Somebody sees everything that was released, holds two neighbouring datasets for equally likely (a record took part,
    or it did not), and guesses which one it was. Let t be how often "it took part" is said when it did, and f when it
    did not. By (ε, δ)-differential privacy t ≤ e^ε f + δ and 1 − f ≤ e^ε (1 − t) + δ. Adding the two,
    (t + 1 − f)(1 + e^ε) ≤ 2 e^ε + 2 δ; and (t + 1 − f) / 2 is the share of right guesses.
    (Kairouz, Oh & Viswanath 2015, arXiv 1311.0776, Theorem 2.1 has the two conditions.)
    """
    if math.isnan(epsilon) or epsilon < 0:
        raise InputError("epsilon", "must be 0 or more", epsilon)
    if not 0 <= delta <= 1:
        raise InputError("delta", "must be between 0 and 1", delta)
    odds = math.exp(-epsilon)  # e^ε overflows where this is 0
    return (1 + delta * odds) / (1 + odds)


def shown_guesses(epsilon: float, delta: float) -> str:
    """That share in per cent, rounded up: a bound must not look smaller than it is."""
    return f"{math.ceil(1000 * right_guesses(epsilon, delta) - 1e-9) / 10:.1f}%"


# The page's colours (Okabe and Ito's, lighter on a dark page); markers and lines repeat what colours say.
COLOURS = tuple(f"var(--mark-{number})" for number in range(1, 8))
SYMBOLS = ("circle", "triangle-up", "diamond", "square", "cross", "x", "star")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
PATTERNS = ("", "/", "x", ".", "-", "+")

Trace = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """One plot of a page; see the macro `plot` of parts.html."""

    id: str
    title: str
    caption: str
    label: str
    data: list[Trace]
    layout: dict[str, Any]
    columns: list[str]
    rows: list[list[Any]]


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis with its title."""
    return {"title": {"text": title}, **more}


def line(name: str, x: Sequence[Any], y: Sequence[float | None], number: int, **more: Any) -> Trace:
    """A line with marks in the look of its number."""
    colour = COLOURS[number % len(COLOURS)]
    return {
        "type": "scatter", "mode": "lines+markers", "name": plain(name), "x": list(x), "y": list(y),
        "line": {"color": colour, "width": 2, "dash": DASHES[number % len(DASHES)]},
        "marker": {"color": colour, "size": 6, "symbol": SYMBOLS[number % len(SYMBOLS)]}, **more,
    }  # fmt: skip


def plain(text: str) -> str:
    """The text for Plotly, which reads some HTML: what looks like a tag is shown, not obeyed."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def rates_by_group(key: str, attribute: str, groups: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Bars: how often each group is decided for, over all and by label; intervals where there are some."""
    names = {
        "selection_rate": "all records",
        "true_positive_rate": "positive label",
        "false_positive_rate": "negative label",
    }
    traces, rows = [], []
    for number, (group, row) in enumerate(groups.items()):
        values = [row.get(name) for name in names]
        intervals = [row.get("intervals", {}).get(name) for name in names]
        trace: Trace = {
            "type": "bar", "name": plain(f"{attribute} = {group}"), "x": list(names.values()), "y": values,
            "marker": {
                "color": COLOURS[number % len(COLOURS)],
                "pattern": {"shape": PATTERNS[number % len(PATTERNS)], "fillmode": "overlay", "fgcolor": "var(--card)",
                            "fgopacity": 0.6, "size": 7, "solidity": 0.2},
            },
            "hovertemplate": "%{fullData.name}<br>%{x}: %{y:.1%}<extra></extra>",
        }  # fmt: skip
        if any(intervals):
            trace["error_y"] = {
                "type": "data", "symmetric": False, "color": "var(--ink)", "thickness": 1.2, "width": 4,
                "array": [_part(i and i[1] - v) for i, v in zip(intervals, values, strict=True)],
                "arrayminus": [_part(i and v - i[0]) for i, v in zip(intervals, values, strict=True)],
            }  # fmt: skip
        traces.append(trace)
        rows.append([group, *(rate_cell(v, i) for v, i in zip(values, intervals, strict=True))])
    reported = "; ".join(f"{group}: {rate(row.get('selection_rate'))}" for group, row in groups.items())
    return Figure(
        f"rates-{key}",
        f"How often the model says yes, by {attribute}.",
        "Among all records of a group, and among those whose true label is positive or negative.",
        f"Bar chart of the share of positive decisions by {attribute}. Among all records: {reported}.",
        traces,
        {"barmode": "group", "yaxis": axis("share of positive decisions", tickformat=".0%", rangemode="tozero"),
         "xaxis": {"type": "category"}, "bargap": 0.3},
        [attribute, *names.values()],
        rows,
    )  # fmt: skip


def over_rounds(
    key: str, title: str, caption: str, rounds: Sequence[int], lines: Mapping[str, Sequence[float | None]],
    *, y: str, percent: bool,
) -> Figure:  # fmt: skip
    """Lines over the rounds of a run."""
    ends = ", ".join(
        f"{name} {_value(values[0], percent).text} to {_value(values[-1], percent).text}"
        for name, values in lines.items()
    )
    form = "%{y:.1%}" if percent else "%{y:.4g}"
    return Figure(
        key,
        title,
        caption,
        f"Line chart over rounds {rounds[0]} to {rounds[-1]}: {ends}.",
        [
            line(name, rounds, values, number, hovertemplate=f"round %{{x}}: {form}<extra>%{{fullData.name}}</extra>",
                 **({"mode": "lines"} if len(rounds) > 40 else {}))
            for number, (name, values) in enumerate(lines.items())
        ],
        {"xaxis": axis("round"),
         "yaxis": axis(y, rangemode="tozero", **({"tickformat": ".0%"} if percent else {}))},
        ["round", *lines],
        [[str(r), *(_value(values[i], percent) for values in lines.values())] for i, r in enumerate(rounds)],
    )  # fmt: skip


def score_histogram(key: str, attribute: str, bins: Sequence[float], shares: Mapping[str, Sequence[float]],
                    sizes: Mapping[str, int]) -> Figure:  # fmt: skip
    """Steps: how the scores of each group are spread."""
    traces = []
    for number, (group, values) in enumerate(shares.items()):
        trace = line(f"{attribute} = {group}, {count(sizes[group])} records", bins, [*values, values[-1]], number)
        trace |= {"mode": "lines", "hovertemplate": "from %{x:.2f}: %{y:.1%}<extra>%{fullData.name}</extra>"}
        trace["line"]["shape"] = "hv"
        traces.append(trace)
    return Figure(
        f"scores-{key}",
        f"How the model's scores are spread, by {attribute}.",
        "Share of a group's test records in each range of scores. Groups that are treated alike have the same shape.",
        f"Step chart of the share of records by range of scores, by {attribute}; the same figures are in the table.",
        traces,
        {"xaxis": axis("score"), "yaxis": axis("share of the group", tickformat=".0%", rangemode="tozero")},
        ["scores", *(f"{attribute} = {group}" for group in shares)],
        [
            [f"{low:.2f} to {high:.2f}", *(rate_cell(values[i]) for values in shares.values())]
            for i, (low, high) in enumerate(pairwise(bins))
        ],
    )  # fmt: skip


def score_ecdf(key: str, attribute: str, grid: Sequence[float], shares: Mapping[str, Sequence[float]]) -> Figure:
    """Lines: which share of each group has a score of at most so much."""
    traces = []
    for number, (group, values) in enumerate(shares.items()):
        trace = line(f"{attribute} = {group}", grid, values, number)
        traces.append(trace | {"mode": "lines", "hovertemplate": "at most %{x:.2f}: %{y:.1%}<extra></extra>"})
    return Figure(
        f"ecdf-{key}",
        f"Share of each group with a score of at most so much, by {attribute}.",
        "The vertical distance between two lines at a threshold is the difference of the shares that stay below it.",
        f"Lines of the cumulative share of records over the score, by {attribute}; the same figures are in the table.",
        traces,
        {"xaxis": axis("score"), "yaxis": axis("share of the group", tickformat=".0%", range=[0, 1.02])},
        ["score at most", *(f"{attribute} = {group}" for group in shares)],
        [[f"{x:.2f}", *(rate_cell(values[i]) for values in shares.values())] for i, x in enumerate(grid)],
    )


def finite(values: Sequence[float | None]) -> list[float | None]:
    """None for what cannot be drawn."""
    return [None if value is None or not math.isfinite(value) else value for value in values]


def _value(value: float | None, percent: bool) -> Cell:
    return rate_cell(value) if percent else Cell("–" if value is None else f"{value:.4g}", value)


def _part(value: float | None) -> float:
    return max(0.0, value or 0.0)


def burn_down_figure(key: str, dataset: DatasetAudit) -> Figure | None:
    """ε spent by the worst record over time, with the budget; None where nothing was spent or no ε is claimed."""
    points = dataset.burn_down
    if not points:
        return None
    times = [point.at for point in points]
    epsilons = [point.epsilon if math.isfinite(point.epsilon) else None for point in points]
    name, budget = dataset.state.name, dataset.state.budget
    spent = line("ε spent so far (RDP)", times, epsilons, 0, hovertemplate="%{x}<br>ε = %{y:.4g}<extra></extra>")
    spent["line"]["shape"] = "hv"
    traces: list[Trace] = [spent]
    whole = dataset.state.neighbouring is not None and dataset.state.neighbouring.unit is Unit.CLIENT
    exposed = "data holder" if whole else "record"
    reported = "" if budget is None else f" The budget is ε = {budget.epsilon:g}."
    window = time_window(times)
    shown = [times[0], times[-1]] if window is None else [moment.strftime("%Y-%m-%dT%H:%M:%SZ") for moment in window]
    time: dict[str, Any] = {"type": "date", "nticks": 6} | ({} if window is None else {"range": shown})
    if budget is not None:
        traces.append({
            "type": "scatter", "mode": "lines", "name": f"budget, ε = {budget.epsilon:g}", "x": shown,
            "y": [budget.epsilon] * 2, "line": {"color": "var(--mark-2)", "width": 2, "dash": "dash"},
            "hoverinfo": "skip",
        })  # fmt: skip
    last = epsilons[-1]
    end = "∞ (a release was not private)" if last is None else f"{last:.4g}"
    return Figure(
        f"burn-down-{key}",
        f"What was spent on {name}, over time.",
        f"ε of the {exposed} that is exposed most, over all runs so far (by RDP, for plans fixed beforehand)."
        + reported,
        f"Step chart of ε spent on {plain(name)} from {times[0][:16]} to {times[-1][:16]}: it ends at {end}.{reported}",
        traces,
        {"xaxis": axis("", **time), "yaxis": axis("ε so far", rangemode="tozero")},
        ["time (UTC)", "ε so far (RDP)", "budget left"],
        _rows(points),
    )


def _rows(points: Sequence[Point]) -> list[list[str | Cell]]:
    """The points as a table, without rows that read like the one before."""
    rows: list[list[str | Cell]] = []
    read: list[str] = []
    for point in points:
        at, spent = point.at[:19].replace("T", " "), epsilon_cell(point.epsilon)
        left = Cell(percent(point.left), _finite(point.left))
        if read != (read := [at, spent.text, left.text]):
            rows.append([at, spent, left])
    return rows


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


# ---- Figures without a script: for pages that are passed on, which Plotly would make 5 MB long.

WIDTH, HEIGHT = 720.0, 300.0
LEFT, RIGHT, TOP, BOTTOM = 58.0, 12.0, 12.0, 46.0
TICKS = 5


def drawing(figure: Figure) -> Markup:
    """The bars or lines of a figure as SVG, in the page's own colours; a number is told where a pointer rests on it."""
    y_axis, x_axis = figure.layout["yaxis"], figure.layout["xaxis"]
    shares = y_axis.get("tickformat", "").endswith("%")
    tops = [_top(trace) for trace in figure.data]
    step = _step(max([top for top in tops if math.isfinite(top)], default=0.0) or 1.0)
    high = step * max(1, math.ceil(max([*tops, step]) / step - 1e-9))
    parts = []
    for number in range(round(high / step) + 1):
        value = number * step
        y = _height(value, high)
        text = f"{100 * value:.3g}%" if shares else f"{value:.4g}"
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    bars = [trace for trace in figure.data if trace["type"] == "bar"]
    parts += _bars(bars, high, shares) if bars else _lines(figure.data, high, shares, x_axis.get("type") == "date")
    middle, title = (LEFT + WIDTH - RIGHT) / 2, escape(x_axis.get("title", {}).get("text", ""))
    parts.append(f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{title}</text>')
    upright = f'transform="translate(13 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)"'
    parts.append(f'<text {upright} text-anchor="middle">{escape(y_axis["title"]["text"])}</text>')
    return Markup(f'<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" aria-hidden="true">{"".join(parts)}</svg>')


def legend(figure: Figure) -> list[tuple[str, str]]:
    """(colour, name) of every trace, as plain text."""
    found = []
    for trace in figure.data:
        colour = trace.get("marker", {}).get("color") or trace.get("line", {}).get("color") or COLOURS[0]
        found.append((str(colour), Markup(trace["name"]).unescape()))
    return found


def _top(trace: Trace) -> float:
    """The highest point of a trace, with its intervals."""
    up = trace.get("error_y", {}).get("array", [0.0] * len(trace["y"]))
    return max([y + e for y, e in zip(trace["y"], up, strict=True) if y is not None], default=0.0)


def _step(top: float) -> float:
    """A round distance between marks, so that there are about five."""
    unit = 10.0 ** math.floor(math.log10(top / TICKS))
    return next(unit * times for times in (1, 2, 2.5, 5, 10) if unit * times * TICKS >= top * (1 - 1e-9))


def _height(value: float, high: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / high


def _told(name: str, at: str, value: float, shares: bool) -> str:
    return f"<title>{name}, {escape(at)}: {f'{100 * value:.1f}%' if shares else f'{value:.4g}'}</title>"


def _bars(traces: Sequence[Trace], high: float, shares: bool) -> list[str]:
    categories, parts = traces[0]["x"], []
    room = (WIDTH - LEFT - RIGHT) / len(categories)
    width = 0.7 * room / len(traces)
    for place, category in enumerate(categories):
        start = LEFT + place * room
        where = f'x="{start + room / 2:.1f}" y="{HEIGHT - BOTTOM + 18}"'
        parts.append(f'<text {where} text-anchor="middle">{escape(category)}</text>')
        for number, trace in enumerate(traces):
            value = trace["y"][place]
            if value is None:
                continue
            x, y = start + 0.15 * room + number * width, _height(value, high)
            told = _told(trace["name"], category, value, shares)
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{0.92 * width:.1f}" height="{HEIGHT - BOTTOM - y:.1f}" '
                f'style="fill:{trace["marker"]["color"]}">{told}</rect>'
            )
            error = trace.get("error_y")
            if error is not None:
                centre = x + 0.46 * width
                up, down = (
                    _height(value + error["array"][place], high),
                    _height(max(0.0, value - error["arrayminus"][place]), high),
                )
                parts.append(
                    f'<path class="interval-mark" d="M{centre:.1f} {up:.1f}V{down:.1f}M{centre - 4:.1f} {up:.1f}h8'
                    f'M{centre - 4:.1f} {down:.1f}h8"/>'
                )
    return parts


def _lines(traces: Sequence[Trace], high: float, shares: bool, dates: bool) -> list[str]:
    every = [_moment(x) if dates else float(x) for trace in traces for x in trace["x"]]
    low, reach = min(every), (max(every) - min(every)) or 1.0

    def across(x: Any) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * ((_moment(x) if dates else float(x)) - low) / reach

    parts = []
    ends = sorted({x for trace in traces for x in trace["x"]}, key=across)
    for x, anchor in ((ends[0], "start"), (ends[-1], "end"))[: len(ends)]:
        text = str(x)[:16].replace("T", " ") if dates else f"{x:g}"
        parts.append(f'<text x="{across(x):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="{anchor}">{text}</text>')
    for trace in traces:
        colour, path, before = trace["line"]["color"], "", None
        for x, value in zip(trace["x"], trace["y"], strict=True):
            if value is None:
                before = None
                continue
            at, y = across(x), _height(value, high)
            if before is None:
                path += f"M{at:.1f} {y:.1f}"
            else:
                path += f"H{at:.1f}V{y:.1f}" if trace["line"].get("shape") == "hv" else f"L{at:.1f} {y:.1f}"
            before = value
            if "markers" in trace["mode"]:
                told = _told(trace["name"], str(x), value, shares)
                parts.append(f'<circle cx="{at:.1f}" cy="{y:.1f}" r="3.5" style="fill:{colour}">{told}</circle>')
        dash = "" if trace["line"].get("dash", "solid") == "solid" else ";stroke-dasharray:6 4"
        parts.append(f'<path d="{path}" style="fill:none;stroke:{colour};stroke-width:2{dash}"/>')
    return parts


def _moment(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
