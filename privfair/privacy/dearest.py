"""What a round of shared scores costs the record that pays most for them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from accountant.events import Event, Nothing
from privfair.fairness.cells import Cells
from privfair.mechanisms.grid_noise import ScoreNoise
from privfair.mechanisms.score_release import fixed_scores_event, poisson_scores_event
from privfair.privacy.workload import Sampling

Priced = tuple[float, Event]  # the rate at which records are sampled, and what a message costs


def dearest_scores(
    cells: Cells, sampling: Sampling, noise: ScoreNoise, rate: float | None, public_counts: NDArray[np.int64] | None
) -> list[Event]:
    """For each attribute a record's dearest cell, or one of every set where sets overlap.

    `rate`: a configured one, under add-or-remove; `public_counts`: (clients, cells), where they are public.
    """
    events = []
    for attribute in range(cells.attributes):
        by_set = []
        for comparison in cells.comparisons:
            if comparison.attribute == attribute:
                costs = [_cell(cell, sampling, noise, rate, public_counts) for cell in comparison.cells]
                by_set += [max((c for c in costs if c[0] > 0), key=lambda c: c[0], default=(0.0, Nothing()))]
        if cells.notion.sets_of_a_record == 1:
            by_set = [max(by_set, key=lambda c: c[0])]
        events += [event for _, event in by_set]
    return events


def _cell(
    cell: int, sampling: Sampling, noise: ScoreNoise, rate: float | None, public_counts: NDArray[np.int64] | None
) -> Priced:
    """Of the client whose records of this cell are sampled at the highest rate.

    A configured rate is paid for whether or not the cell turns out large enough: the plan was fixed before that.
    """
    if rate is not None:
        return rate, poisson_scores_event(rate, noise)
    quotas = np.zeros(0) if sampling.quotas is None else sampling.quotas[:, cell]
    if not quotas.any():
        return 0.0, Nothing()
    if sampling.rates is not None:
        highest = float(sampling.rates[quotas > 0, cell].max())
        return highest, poisson_scores_event(highest, noise)
    counts = quotas if public_counts is None else public_counts[:, cell]
    rates = np.where(quotas > 0, quotas / np.maximum(counts, 1), 0.0)
    k = int(np.argmax(rates))
    return float(rates[k]), fixed_scores_event(int(quotas[k]), int(counts[k]), noise)
