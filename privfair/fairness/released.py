"""Accuracy and unfairness from noisy confusion counts: what a report of data with a budget can show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privfair.datasets.records import Schema, SensitiveAttribute
from privfair.fairness.metrics import headline, interval_around, most_of, spread
from privfair.mechanisms.count_release import CountNoise
from privfair.mechanisms.entropy import SeededEntropy
from privfair.util import FloatArray

Rates = dict[str, FloatArray]  # by group, NaN where a group has no such records
# Which rates a notion compares; of several the largest difference counts.
COMPARED = {
    "statistical_parity": ("selection_rate",),
    "equal_opportunity": ("true_positive_rate",),
    "predictive_equality": ("false_positive_rate",),
    "equalized_odds": ("true_positive_rate", "false_positive_rate"),
}


def released_figures(
    replies: Sequence[tuple[NDArray[np.int64], ...]],
    schema: Schema,
    noise: CountNoise,
    rng: np.random.Generator,
    *,
    draws: int = 400,
) -> dict[str, Any]:
    """Accuracy, and for each attribute rates by group and their largest gaps, from every client's noisy counts.

    Intervals (95%) are of the noise alone: how far as much noise once more, drawn `draws` times from `rng`, moves the
    figures. They say nothing that the released counts do not.
    """
    totals = [np.sum([client[a] for client in replies], axis=0) for a in range(len(schema.sensitive))]
    found = [_rates(table) for table in totals]
    again: list[float] = []  # the accuracy
    errors: list[dict[str, list[float]]] = [{} for _ in totals]  # of each attribute's gaps, by notion
    entropy = SeededEntropy(rng)
    for _ in range(draws):
        noisy = []
        for table in totals:
            shape = (len(replies), *table.shape)
            noisy.append(table + noise.release(np.zeros(shape, dtype=np.int64), entropy).sum(axis=0))
        accuracy = _accuracy(noisy[0])
        if accuracy is not None:
            again.append(accuracy)
        for rates, table, own in zip(found, noisy, errors, strict=True):
            redrawn = _rates(table)
            for notion, error in _gaps({name: redrawn[name] - rates[name] for name in rates}).items():
                if error is not None:
                    own.setdefault(notion, []).append(error)
    by_attribute = {
        attribute.name: _about(_gaps(rates), own)
        for attribute, rates, own in zip(schema.sensitive, found, errors, strict=True)
    }
    run = headline(by_attribute)
    if again:
        run["confidence_intervals"] = {
            "accuracy": np.quantile(again, (0.025, 0.975)).tolist(),
            **run["confidence_intervals"],
        }
    return {
        "accuracy": _accuracy(totals[0]),
        **run,
        "by_attribute": by_attribute,
        "groups": {
            attribute.name: _rows(attribute, table, rates)
            for attribute, table, rates in zip(schema.sensitive, totals, found, strict=True)
        },
    }


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
    found = {name: spread(rate) for name, rate in rates.items()}
    return {notion: most_of(found[name] for name in names) for notion, names in COMPARED.items()}


def _about(gaps: dict[str, float | None], errors: dict[str, list[float]]) -> dict[str, Any]:
    """An attribute's gaps and their intervals."""
    intervals = {
        notion: list(interval_around(gap, errors[notion]))
        for notion, gap in gaps.items()
        if gap is not None and notion in errors
    }
    return {"unfairness": gaps, "confidence_intervals": intervals}


def _rows(attribute: SensitiveAttribute, table: NDArray[np.int64], rates: Rates) -> dict[str, dict[str, float | None]]:
    """By group: records and rates; a rate without records is None."""
    sizes = _counts(table).sum(axis=(1, 2))
    return {
        value: {"records": float(sizes[g]), **{name: _number(rate[g]) for name, rate in rates.items()}}
        for g, value in enumerate(attribute.values)
    }


def _rate(part: FloatArray, whole: FloatArray) -> FloatArray:
    return np.divide(part, whole, out=np.full_like(whole, np.nan), where=whole > 0)


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
