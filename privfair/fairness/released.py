"""Accuracy and unfairness from noisy confusion counts: what a report of data with a budget can show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privfair.arrays import FloatArray
from privfair.datasets.records import Schema


def released_figures(tables: Sequence[tuple[NDArray[np.int64], ...]], schema: Schema) -> dict[str, Any]:
    """Accuracy, and for each attribute rates by group and their largest gaps, from every client's noisy counts.

    Counts are summed over clients first, then cut at 0: sums of unclamped noisy counts are unbiased. Rates of small
    groups are as noisy as their counts; a rate without records is None.
    """
    by_attribute: dict[str, Any] = {}
    groups: dict[str, Any] = {}
    accuracy = None
    for a, attribute in enumerate(schema.sensitive):
        table: FloatArray = np.maximum(np.sum([client[a] for client in tables], axis=0), 0).astype(float)
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
