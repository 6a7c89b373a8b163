"""What an add-or-remove release costs between datasets in which one record was exchanged for another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import singledispatch

from accountant.errors import InputError
from accountant.events import (
    Composed,
    Event,
    Mechanism,
    Nothing,
    NotPrivate,
    PoissonSampled,
    Repeated,
)
from accountant.neighbouring import Adjacency


@singledispatch
def as_replaced(event: Event) -> Event:
    """The same release under replace-one.

    A replacement is a removal followed by an addition, so it moves the query by at most twice the
    add-or-remove sensitivity; and a record's presence moves it by that sensitivity itself.
    """
    raise InputError("event", "must be an add-or-remove release", event)


def all_replaced(counts: Mapping[Event, int]) -> Counter[Event]:
    """The same for counted releases."""
    total: Counter[Event] = Counter()
    for event, count in counts.items():
        total[as_replaced(event)] += count
    return total


@as_replaced.register
def _mechanism(event: Mechanism) -> Event:
    if event.adjacency is Adjacency.REPLACE_ONE:
        return event
    return replace(event, sensitivity=2 * event.sensitivity, adjacency=Adjacency.REPLACE_ONE)


@as_replaced.register
def _poisson_sampled(event: PoissonSampled) -> Event:
    if event.event.adjacency is Adjacency.REPLACE_ONE:
        return event
    doubled = as_replaced(event.event)
    if not isinstance(doubled, Mechanism):
        raise InputError("event", "must be a sampled mechanism", event)
    return PoissonSampled(event.rate, doubled, float(event.event.sensitivity))


@as_replaced.register
def _composed(event: Composed) -> Event:
    return Composed(tuple(as_replaced(part) for part in event.events))


@as_replaced.register
def _repeated(event: Repeated) -> Event:
    return Repeated(as_replaced(event.event), event.count)


@as_replaced.register(Nothing)
@as_replaced.register(NotPrivate)
def _same(event: Event) -> Event:
    return event
