"""The part of a run's report about fairness: how well the model works for whom, and how far groups are apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from accountant.errors import InputError
from privfair.datasets.registry import load_configured
from privfair.fairness.metrics import THRESHOLD
from privfair.numbers import Cell, count, number_cell, points, points_span, rate_cell
from privfair.reports.figures import Figure, over_rounds, rates_by_group, score_ecdf, score_histogram
from privfair.reports.run_facts import RunFacts
from privfair.runs.folder import load

BINS, GRID = 20, 51  # of the figures of scores
# What is compared between groups, and in which words.
NOTIONS = {
    "statistical_parity": ("Statistical parity", "the share of positive decisions"),
    "equal_opportunity": ("Equal opportunity", "the share of positive decisions among records with a positive label"),
    "predictive_equality": (
        "Predictive equality", "the share of positive decisions among records with a negative label",
    ),
    "equalized_odds": ("Equalized odds", "the larger one of the two differences by label"),
    "conditional_statistical_parity": (
        "Conditional statistical parity", "the share of positive decisions within the same conditions",
    ),
    "risk_parity": ("Risk parity", "the mean loss, that is how wrong the model is"),
    "mmd2": ("MMD²", "the whole distribution of scores (a squared distance, what training holds down)"),
}  # fmt: skip
OF_SHARES = ("statistical_parity", "equal_opportunity", "predictive_equality", "equalized_odds",
             "conditional_statistical_parity")  # fmt: skip
COLUMNS = {
    "records": "records",
    "accuracy": "right decisions",
    "selection_rate": "positive decisions",
    "true_positive_rate": "… of positive labels (TPR)",
    "false_positive_rate": "… of negative labels (FPR)",
    "mean_score": "mean score",
}
RELEASED = (
    "These figures come from counts to which noise was added before they left the data holders; they are part of what "
    "ε covers. Intervals (95%, of differences 96%) show the uncertainty from that noise and from which people "
    "happen to be in the test records."
)
EXACT = (
    "Exact figures of a simulation, on the pooled test records of all data holders. No ε covers them. Intervals (95%, "
    "of differences 96%) show the uncertainty from which people happen to be in the test records."
)


@dataclass(frozen=True)
class Attribute:
    """One sensitive attribute: differences between its groups, and its groups."""

    name: str
    gaps: list[list[Any]]
    columns: list[str]
    groups: list[list[Any]]
    figure: Figure | None


@dataclass(frozen=True)
class Fairness:
    """Figures of one kind, released or exact. `largest`: the gaps over all attributes, each with its attribute last."""

    kind: str
    note: str
    accuracy: Cell | None
    largest: list[list[Any]]
    attributes: list[Attribute]
    sentence: str


def fairness_of(facts: RunFacts) -> list[Fairness]:
    """The figures that may be shown: released ones if there are any, exact ones if they were asked for."""
    found = []
    if facts.released["figures"] is not None:
        found.append(_fairness("released", RELEASED, facts.released["figures"], facts))
    if facts.exact is not None and facts.exact["groups"]:
        found.append(_fairness("exact", EXACT, facts.exact, facts))
    elif facts.unprotected is not None:
        found.append(_fairness("exact", EXACT, facts.unprotected, facts))
    return found


def _fairness(kind: str, note: str, figures: Mapping[str, Any], facts: RunFacts) -> Fairness:
    shares = facts.released["model"]["task"] == "binary"
    accuracy = None
    if figures["accuracy"] is not None:
        accuracy = rate_cell(figures["accuracy"], figures["confidence_intervals"].get("accuracy"))
    several = len(figures["groups"]) > 1
    largest = [
        [*_gap(notion, value, figures["confidence_intervals"].get(notion), shares), _owner(figures, notion)]
        for notion, value in figures["unfairness"].items()
        if value is not None and _owner(figures, notion)
    ]
    attributes = []
    for number, (name, groups) in enumerate(figures["groups"].items()):
        # the gaps of a single attribute are those of the run, with what its notion adds
        about = figures["by_attribute"][name] if several else figures
        intervals = about.get("confidence_intervals", {})
        attributes.append(_attribute(f"{kind}-{number}", name, groups, about["unfairness"], intervals, shares))
    return Fairness(kind, note, accuracy, largest, attributes, _sentence(figures, facts, shares))


def _owner(figures: Mapping[str, Any], notion: str) -> str:
    """The attribute with the largest gap; "" if a run of an older version did not note it."""
    names = list(figures["groups"])
    if len(names) == 1:
        return str(names[0])
    return "all, added up" if notion == "mmd2" else str(figures.get("unfairness_of", {}).get(notion, ""))


def _attribute(
    key: str, name: str, groups: Mapping[str, Any], gaps: Mapping[str, Any], intervals: Mapping[str, Any], shares: bool
) -> Attribute:
    columns = [column for column in COLUMNS if column in next(iter(groups.values()))]
    rows: list[list[Any]] = []
    for group, row in groups.items():
        own = row.get("intervals", {})
        cells = [
            Cell(count(row[c]), row[c]) if c == "records"
            else number_cell(row[c], own.get(c)) if c == "mean_score"
            else rate_cell(row[c], own.get(c))
            for c in columns
        ]  # fmt: skip
        rows.append([group, *cells])
    return Attribute(
        name,
        [_gap(notion, value, intervals.get(notion), shares) for notion, value in gaps.items() if value is not None],
        [name, *(COLUMNS[c] for c in columns)],
        rows,
        rates_by_group(key, name, groups) if "selection_rate" in columns else None,
    )


def words_of(notion: str) -> tuple[str, str]:
    """A notion's title and what it compares between groups; the notion may be the user's own."""
    return NOTIONS.get(notion, (notion.replace("_", " ").capitalize(), "what this notion compares"))


def _gap(notion: str, value: float, interval: Any, shares: bool) -> list[Any]:
    """Name, what is compared, the largest difference, its interval."""
    title, what = words_of(notion)
    if shares and notion in OF_SHARES:
        return [title, what, Cell(points(value), value), points_span(interval)]
    if not shares and notion == "statistical_parity":
        what = "the mean prediction"
    text = f"{value:.2e}" if 0 < abs(value) < 0.001 else f"{value:.4f}"
    return [title, what, Cell(text, value), "" if interval is None else f"{interval[0]:.4f} to {interval[1]:.4f}"]


def _sentence(figures: Mapping[str, Any], facts: RunFacts, shares: bool) -> str:
    """How differently the model treats groups, in one sentence, by the notion it was trained for."""
    notion, instead = facts.notion, ""
    value = figures["unfairness"].get(notion)
    if value is None:
        instead = f" There is no figure here of {words_of(notion)[0]}, which the model was trained for."
        notion, value = "statistical_parity", figures["unfairness"].get("statistical_parity")
    if value is None:
        return ""
    owner = _owner(figures, notion)
    if not owner:
        return ""
    groups = f"{owner} ({', '.join(figures['groups'][owner])})"
    among = ", of all sensitive attributes the one with the largest difference," if len(figures["groups"]) > 1 else ","
    interval = figures["confidence_intervals"].get(notion)
    if shares and notion in OF_SHARES:
        between = f" (95% interval {points_span(interval)})" if interval else ""
        return (
            f"Between the groups of {groups}{among} {NOTIONS[notion][1]} differs by at most {points(value)}{between}."
            f"{instead}"
        )
    own = ("", f"what {notion!r} compares")
    what = "the mean prediction" if notion == "statistical_parity" else NOTIONS.get(notion, own)[1]
    return f"Between the groups of {groups}{among} {what} differs by at most {value:.4f}.{instead}"


def rounds_of(facts: RunFacts) -> Figure | None:
    """Exact accuracy and unfairness over the rounds; None if they were not asked for or do not exist."""
    history = [row for row in facts.history if row.get("statistical_parity") is not None]
    if len(history) < 2:
        return None
    shares = facts.released["model"]["task"] == "binary"
    notion = facts.notion
    names = {"accuracy": "right decisions", notion: f"unfairness: {notion.replace('_', ' ')}"}
    lines = {
        label: [row.get(name) for row in history]
        for name, label in names.items()
        if any(row.get(name) is not None for row in history)
    }
    several = facts.exact is not None and len(facts.exact["groups"]) > 1
    over = " Unfairness is the largest over all sensitive attributes." if several else ""
    return over_rounds(
        "rounds",
        "Accuracy and unfairness, round by round.",
        f"Exact figures of the simulation, on the test records of all data holders.{over}",
        [int(row["round"] or 0) for row in history],
        lines,
        y="share" if shares else "value",
        percent=shares and notion in OF_SHARES,
    )


def score_figures(facts: RunFacts) -> tuple[list[Figure], str]:
    """(figures for each attribute, why there are none): histograms and cumulative shares of the test records' scores.

    They are exact and never released: recomputed from the model and the data, which are loaded again. If the accuracy
    differs from the run's, the data are others, and nothing is drawn.
    """
    if facts.exact is None:
        return [], ""
    try:
        federation = load_configured(facts.config)
        model = load(Path(facts.path))
        test = federation.pooled_test()
        scores = model.scores(test.features)
    except InputError as error:
        return [], f"The distributions of scores are left out: the data or the model could not be loaded ({error})"
    schema = federation.schema
    if schema.task == "binary" and len(test):
        right = float(np.mean((scores >= THRESHOLD) == (test.labels == 1)))
        if facts.exact["accuracy"] is None or abs(right - facts.exact["accuracy"]) > 1e-6:
            return [], "The distributions of scores are left out: the data found are not those of the run."
    if not len(test):
        return [], "There are no test records to show scores of."
    low, high = (0.0, 1.0) if schema.task == "binary" else (float(scores.min()), float(scores.max()))
    bins = np.linspace(low, high if high > low else low + 1.0, BINS + 1)
    grid = np.linspace(low, high, GRID)
    figures = []
    for number, attribute in enumerate(schema.sensitive):
        of = {value: np.sort(scores[test.groups[:, number] == group]) for group, value in enumerate(attribute.values)}
        present = {value: own for value, own in of.items() if own.size}
        shares = {value: (np.histogram(own, bins)[0] / own.size).tolist() for value, own in present.items()}
        sizes = {value: int(own.size) for value, own in present.items()}
        below = {
            value: (np.searchsorted(own, grid, side="right") / own.size).tolist() for value, own in present.items()
        }
        figures += [
            score_histogram(str(number), attribute.name, bins.tolist(), shares, sizes),
            score_ecdf(str(number), attribute.name, grid.tolist(), below),
        ]
    return figures, ""
