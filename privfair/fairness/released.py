"""Accuracy and unfairness from noisy confusion counts: what a report of data with a budget can show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privfair.arrays import FloatArray
from privfair.datasets.records import Schema
from privfair.mechanisms.count_release import CountNoise
from privfair.mechanisms.entropy import SeededEntropy

Tables = list[NDArray[np.int64]]  # one per attribute: (groups, label, decision), over all clients


def released_figures(
    replies: Sequence[tuple[NDArray[np.int64], ...]],
    schema: Schema,
    noise: CountNoise,
    rng: np.random.Generator,
    *,
    draws: int = 400,
) -> dict[str, Any]:
    """Accuracy, and for each attribute rates by group and their largest gaps, from every client's noisy counts.

    Intervals (95%) are of the noise alone: the same figures with as much noise once more, drawn `draws` times from
    `rng`. They say nothing that the released counts do not.
    """
    totals = [np.sum([client[a] for client in replies], axis=0) for a in range(len(schema.sensitive))]
    found = _figures(totals, schema)
    entropy = SeededEntropy(rng)
    again: dict[str, list[float]] = {}
    for _ in range(draws):
        noisy = []
        for table in totals:
            shape = (len(replies), *table.shape)
            noisy.append(table + noise.release(np.zeros(shape, dtype=np.int64), entropy).sum(axis=0))
        redrawn = _figures(noisy, schema)
        for name, value in {"accuracy": redrawn["accuracy"], **redrawn["unfairness"]}.items():
            if value is not None:
                again.setdefault(name, []).append(value)
    intervals = {name: np.quantile(values, (0.025, 0.975)).tolist() for name, values in again.items()}
    return {**found, "confidence_intervals": intervals}


def _figures(totals: Tables, schema: Schema) -> dict[str, Any]:
    """The figures of summed counts.

    They are cut at 0 only after summing over clients: sums of unclamped noisy counts are unbiased. A rate without
    records is None.
    """
    by_attribute: dict[str, Any] = {}
    groups: dict[str, Any] = {}
    accuracy = None
    for a, attribute in enumerate(schema.sensitive):
        table: FloatArray = np.maximum(totals[a], 0).astype(float)
        if a == 0 and table.sum() > 0:
            accuracy = float((table[:, 0, 0] + table[:, 1, 1]).sum() / table.sum())
        rates = {
            "selection_rate": _rate(table[:, :, 1].sum(axis=1), table.sum(axis=(1, 2))),
            "true_positive_rate": _rate(table[:, 1, 1], table[:, 1].sum(axis=1)),
            "false_positive_rate": _rate(table[:, 0, 1], table[:, 0].sum(axis=1)),
        }
        groups[attribute.name] = {
            value: {"records": float(table[g].sum()), **{name: _number(rate[g]) for name, rate in rates.items()}}
            for g, value in enumerate(attribute.values)
        }
        gaps = {name: _gap(rate) for name, rate in rates.items()}
        odds = [gap for gap in (gaps["true_positive_rate"], gaps["false_positive_rate"]) if gap is not None]
        by_attribute[attribute.name] = {
            "unfairness": {
                "statistical_parity": gaps["selection_rate"],
                "equal_opportunity": gaps["true_positive_rate"],
                "predictive_equality": gaps["false_positive_rate"],
                "equalized_odds": max(odds) if odds else None,
            }
        }
    first = by_attribute[schema.sensitive[0].name]["unfairness"]
    return {"accuracy": accuracy, "unfairness": first, "by_attribute": by_attribute, "groups": groups}


def _rate(part: FloatArray, whole: FloatArray) -> FloatArray:
    return np.divide(part, whole, out=np.full_like(whole, np.nan), where=whole > 0)


def _gap(rates: FloatArray) -> float | None:
    known = rates[np.isfinite(rates)]
    return float(known.max() - known.min()) if known.size > 1 else None


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
