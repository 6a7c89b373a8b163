"""Largest differences between groups: of one attribute, how far noise can move it, and over several attributes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from privfair.arrays import FloatArray

Gaps = Mapping[str, float | None]  # by notion; None where fewer than two groups have such records


def spread(rates: FloatArray) -> float | None:
    """max − min over the groups whose rate is known (not NaN); None where fewer than two are."""
    known = rates[~np.isnan(rates)]
    return float(known.max() - known.min()) if known.size > 1 else None


def most_of(gaps: Iterable[float | None]) -> float | None:
    """The largest gap that is known; None where none is."""
    return max((gap for gap in gaps if gap is not None), default=None)


def largest(gaps: Sequence[Gaps]) -> dict[str, float | None]:
    """By notion the largest gap over all attributes: what `unfairness` of a run means. `gaps`: those of each."""
    return {notion: most_of(own[notion] for own in gaps) for notion in gaps[0]}


def headline(by_attribute: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """`unfairness`, `unfairness_of` and `confidence_intervals` of a run, from those of each of its attributes.

    By notion: the largest gap over all attributes, the attribute that it is of (the first, where several are as large),
    and that attribute's interval.
    """
    unfairness = largest([about["unfairness"] for about in by_attribute.values()])
    of = {
        notion: next(name for name, about in by_attribute.items() if about["unfairness"][notion] == gap)
        for notion, gap in unfairness.items()
        if gap is not None
    }
    intervals = {notion: by_attribute[name]["confidence_intervals"].get(notion) for notion, name in of.items()}
    return {
        "unfairness": unfairness,
        "unfairness_of": of,
        "confidence_intervals": {notion: interval for notion, interval in intervals.items() if interval is not None},
    }


def interval_around(
    gap: float, errors: Sequence[float], *, most: float = 1.0, level: float = 0.95
) -> tuple[float, float]:
    """gap ± the `level` quantile of `errors`, cut at 0 and at `most`.

    `errors` are draws of spread(e) = max_g e_g − min_g e_g, where e_g is the error of a group's rate. A spread is a
    seminorm, so that |spread(rates + e) − spread(rates)| ≤ spread(e). So the interval holds the true gap at least as
    often as `level` says, for any number of groups, and also a gap of 0, to which noise can only add.
    """
    reach = float(np.quantile(errors, level))
    return max(0.0, gap - reach), min(most, gap + reach)
