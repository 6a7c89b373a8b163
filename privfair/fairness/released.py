"""Accuracy and unfairness from noisy confusion counts: what a report of data with a budget can show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privfair.datasets.records import Schema, SensitiveAttribute
from privfair.fairness.metrics import COMPARED, DIVERGED, RATES, SAME, headline, most_of, spread
from privfair.fairness.notions import Cells
from privfair.fairness.verdict import Decisions, Verdict, impossible, interval, rate_interval, unsound, verdict
from privfair.mechanisms.count_release import CountNoise
from privfair.util import FloatArray

Rates = dict[str, FloatArray]  # by group, NaN where a group has no such records
LABELS = {"everyone": [0, 1], "label 0": [0], "label 1": [1]}  # of the records of a conditioning set


def released_figures(
    replies: Sequence[tuple[NDArray[np.int64], ...]], schema: Schema, noise: CountNoise
) -> dict[str, Any]:
    """Accuracy, and for each attribute rates by group and their largest gaps, from every client's noisy counts.

    Intervals are those of a verdict: of the noise and of the drawing of the records together (95% of rates, 96% of
    gaps).
    """
    totals = totals_of(replies, schema)
    found = [_rates(table) for table in totals]
    by_attribute = {}
    for a, (attribute, rates) in enumerate(zip(schema.sensitive, found, strict=True)):
        gaps = _gaps(rates)
        intervals = {
            notion: list(interval(released_decisions(replies, schema, noise, notion, a)))
            for notion, gap in gaps.items()
            if gap is not None
        }
        by_attribute[attribute.name] = {"unfairness": gaps, "confidence_intervals": intervals}
    run = headline(by_attribute)
    accuracy = _accuracy(totals[0])
    if accuracy is not None:
        right = float(totals[0][:, 0, 0].sum() + totals[0][:, 1, 1].sum())
        variance, laplace = noise_of_sum(noise, len(replies), 2 * len(totals[0]))
        around = rate_interval(right, float(totals[0].sum()), variance, laplace)
        run["confidence_intervals"] = {"accuracy": list(around), **run["confidence_intervals"]}
    return {
        "accuracy": accuracy,
        **run,
        "by_attribute": by_attribute,
        "groups": {
            attribute.name: _rows(attribute, table, rates, noise, len(replies))
            for attribute, table, rates in zip(schema.sensitive, totals, found, strict=True)
        },
    }


def released_verdict(
    replies: Sequence[tuple[NDArray[np.int64], ...]],
    schema: Schema,
    noise: CountNoise | None,
    cells: Cells,
    target: float | None,
    warnings: Sequence[str] = (),
    otherwise: str = "",
) -> dict[str, Any]:
    """The verdict from noisy counts, as plain values. `otherwise`: why there are none, where there are none."""
    notion = cells.notion.name
    if not replies or noise is None:
        reason = otherwise or "no counts of test records were released (privacy.evaluation)"
        return reported(impossible(target, reason), notion, warnings)
    counted = released_decisions(replies, schema, noise, notion)
    if not counted:
        reason = f"the conditioning sets of {notion} are not in the released counts, which are by group and label"
        return reported(impossible(target, reason), notion, warnings)
    if not warnings and perhaps_constant(replies, schema, noise):
        warnings = [f"{SAME}, as far as the released counts show: one of the two decisions is not told from noise."]
    return reported(verdict(counted, target), notion, warnings)


def perhaps_constant(replies: Sequence[tuple[NDArray[np.int64], ...]], schema: Schema, noise: CountNoise) -> bool:
    """Whether one of the two decisions is so rare, over all groups, that noise alone could show it (2 deviations)."""
    by_decision = totals_of(replies, schema)[0].sum(axis=(0, 1))
    variance, _ = noise_of_sum(noise, len(replies), 2 * len(schema.sensitive[0].values))
    return bool(by_decision.min() <= 2 * np.sqrt(variance))


def reported(found: Verdict, notion: str, warnings: Sequence[str]) -> dict[str, Any]:
    """The verdict as plain values, with its sentence; a model that is of no use is named as such."""
    useless = next((w for w in warnings if w.startswith((SAME, DIVERGED))), None)
    if useless is not None:
        found = unsound(found, useless)
    return {**found.to_json(), "notion": notion, "sentence": found.sentence(notion)}


def totals_of(replies: Sequence[tuple[NDArray[np.int64], ...]], schema: Schema) -> list[NDArray[np.int64]]:
    """Confusion counts of each attribute over all clients, (groups, label, decision)."""
    return [np.sum([client[a] for client in replies], axis=0) for a in range(len(schema.sensitive))]


def noise_of_sum(noise: CountNoise, replies: int, cells: int) -> tuple[float, int]:
    """(its variance, of how many Laplace variables it is the sum) for so many cells of so many replies, added up.

    A discrete Gaussian has a variance of at most σ², a discrete Laplace variable one of at most 2b².
    """
    count = replies * cells
    return (count * noise.scale**2, 0) if noise.kind == "gaussian" else (2 * count * noise.scale**2, count)


def released_decisions(
    replies: Sequence[tuple[NDArray[np.int64], ...]],
    schema: Schema,
    noise: CountNoise,
    notion: str,
    attribute: int | None = None,
) -> list[Decisions]:
    """What a verdict on a notion rests on; none where its conditioning sets are not in confusion counts."""
    counted = []
    for a, table in enumerate(totals_of(replies, schema)):
        for condition in COMPARED.get(notion, ()):
            if attribute in (None, a):
                labels = LABELS[condition]
                positives, totals = table[:, labels, 1].sum(axis=1), table[:, labels].sum(axis=(1, 2))
                law = noise_of_sum(noise, len(replies), len(labels))
                about = schema.sensitive[a]
                counted.append(Decisions(about.name, condition, about.values, positives, totals, *law))
    return counted


def _counts(table: NDArray[np.int64]) -> FloatArray:
    """Cut at 0 only after summing over clients: sums of unclamped noisy counts are unbiased."""
    counts: FloatArray = np.maximum(table, 0).astype(float)
    return counts


def _accuracy(table: NDArray[np.int64]) -> float | None:
    counts = _counts(table)
    return float((counts[:, 0, 0] + counts[:, 1, 1]).sum() / counts.sum()) if counts.sum() > 0 else None


def _rates(table: NDArray[np.int64]) -> Rates:
    counts = _counts(table)
    return {
        "selection_rate": _rate(counts[:, :, 1].sum(axis=1), counts.sum(axis=(1, 2))),
        "true_positive_rate": _rate(counts[:, 1, 1], counts[:, 1].sum(axis=1)),
        "false_positive_rate": _rate(counts[:, 0, 1], counts[:, 0].sum(axis=1)),
    }


def _gaps(rates: Rates) -> dict[str, float | None]:
    """By notion the largest difference between groups."""
    found = {condition: spread(rates[name]) for name, condition in RATES.items()}
    return {notion: most_of(found[condition] for condition in sets) for notion, sets in COMPARED.items()}


def _rows(
    attribute: SensitiveAttribute, table: NDArray[np.int64], rates: Rates, noise: CountNoise, replies: int
) -> dict[str, dict[str, Any]]:
    """By group: records and rates with their intervals; a rate without records is None."""
    sizes = _counts(table).sum(axis=(1, 2))
    rows: dict[str, dict[str, Any]] = {}
    for g, value in enumerate(attribute.values):
        intervals = {}
        for name, condition in RATES.items():
            labels = LABELS[condition]
            if np.isfinite(rates[name][g]):
                counted = float(table[g, labels, 1].sum()), float(table[g, labels].sum())
                intervals[name] = list(rate_interval(*counted, *noise_of_sum(noise, replies, len(labels))))
        known = {name: _number(rate[g]) for name, rate in rates.items()}
        rows[value] = {"records": float(sizes[g]), **known, "intervals": intervals}
    return rows


def _rate(part: FloatArray, whole: FloatArray) -> FloatArray:
    return np.divide(part, whole, out=np.full_like(whole, np.nan), where=whole > 0)


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
