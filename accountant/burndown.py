"""How a dataset's spending grew: ε so far, and what was left of its budget, at points along the ledger."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from accountant.books import event_of
from accountant.budget import Budget
from accountant.conversion import epsilon_from_rdp
from accountant.exposure import sum_of_curves
from accountant.rdp import DEFAULT_ORDERS
from accountant.rdp_moments import Array
from accountant.records import clients
from accountant.spending import Payer, add_up, worst_record
from accountant.tally import BudgetChange, Segment, view


@dataclass(frozen=True)
class Point:
    """ε spent by then (by RDP), and the share of the budget left, if there was one."""

    at: str
    epsilon: float
    left: float | None


def burn_down(dataset: str, segments: Sequence[Segment], changes: Sequence[BudgetChange], delta: float) -> list[Point]:
    """One point per stretch of the ledger in which the dataset or its budget appears."""
    points: list[Point] = []
    curves: dict[Payer, Array] = {}
    spent: dict[Payer, float] = {}
    previous = ""
    for segment in segments:
        new = view(segment.counts, dataset=dataset)
        changed = any(previous < change.at <= segment.at for change in changes)
        previous = segment.at
        if not new and not changed:
            continue
        for payer, counts in new.items():
            costs = Counter({event_of(body): count for body, count in counts.items()})
            curves[payer] = curves.get(payer, 0.0) + sum_of_curves(costs)(DEFAULT_ORDERS)
            if changes:
                # The order never changes after a release, so that of the last budget serves for the time before it too.
                cost = (changes[-1].budget.cost(event, count) for event, count in costs.items())
                spent[payer] = add_up(spent.get(payer, 0.0), *cost)
        in_force = [change.budget for change in changes if change.at <= segment.at]
        left = budget_left(in_force[-1], worst_record(spent)[0]) if in_force else None
        points.append(Point(segment.at, _worst_epsilon(curves, delta), left))
    return points


def _worst_epsilon(curves: dict[Payer, Array], delta: float) -> float:
    """ε of the worst record, for a figure: from the largest RDP of any record at each order of the grid.

    Where two records' curves cross this is a little above both; it is never below either.
    """
    totals = [client.largest(curves.__getitem__, len(DEFAULT_ORDERS)) for client in clients(curves)]
    return epsilon_from_rdp(DEFAULT_ORDERS, np.max(totals, axis=0), delta)[0]


def budget_left(budget: Budget, spent: float) -> float:
    """The share of the budget that is left: 1 when untouched, 0 when used up, below 0 when exceeded."""
    return -math.inf if math.isinf(spent) else 1.0 - spent / budget.capacity
