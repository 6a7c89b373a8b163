"""Rényi differential privacy of events: a curve over orders that adds up under composition."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache, singledispatch

import numpy as np

from accountant.errors import InputError
from accountant.events import (
    Event,
    FixedSizeSampled,
    Mechanism,
    Nothing,
    NotPrivate,
    PoissonSampled,
    count_parts,
)
from accountant.neighbouring import Adjacency
from accountant.rdp_base import base_rdp
from accountant.rdp_moments import Array
from accountant.rdp_nodes import forget_nodes
from accountant.rdp_sampled import (
    amplified_replace_one,
    poisson_add_or_remove,
    poisson_replace_one,
)


def order_grid(low: float, high: float, per_octave: int) -> tuple[float, ...]:
    """Orders α with α − 1 spaced evenly in logarithm from `low` to `high`."""
    count = round(math.log2(high / low) * per_octave)
    return tuple(1.0 + low * 2.0 ** (i / per_octave) for i in range(count + 1))


# α − 1 from 1/128 to 1024, eight to the octave: between two of them the best ε changes by less than 0.1%.
# At the infinite order RDP is pure differential privacy, so pure epsilons compose here too.
DEFAULT_ORDERS: tuple[float, ...] = (*order_grid(1 / 128, 1024.0, 8), math.inf)


def rdp(event: Event, orders: Iterable[float] = DEFAULT_ORDERS) -> Array:
    """The Rényi-DP curve of an event at these orders, an upper bound; infinite for `NotPrivate`.

    ε(α) bounds D_α(M(D) ‖ M(D')) for all neighbours D, D' of the event's own adjacency, either way round
    (Mironov 2017, arXiv 1702.07476v3, Definition 4). Compositions add (Proposition 1). The array is
    shared and read-only.
    """
    return _rdp(event, orders if isinstance(orders, tuple) else tuple(float(order) for order in orders))


def forget_curves() -> None:
    """Drop all remembered curves and nodes."""
    _rdp.cache_clear()
    forget_nodes()


@lru_cache(maxsize=4096)
def _rdp(event: Event, orders: tuple[float, ...]) -> Array:
    array = np.array(orders, dtype=np.float64)
    if array.size == 0 or not np.all(array > 1.0):
        remedy = "RDP of order 1 is a Kullback-Leibler divergence and converts to no useful (ε, δ)."
        raise InputError("orders", "must be numbers above 1", orders, remedy)
    parts = count_parts(event)
    if set(parts) == {event}:
        result = np.array(_rdp_of_part(event, array))
    else:
        result = np.zeros(array.shape)
        for part, count in parts.items():
            result += count * _rdp(part, orders)
    result.flags.writeable = False
    return result


@singledispatch
def _rdp_of_part(event: Event, orders: Array) -> Array:
    raise InputError("event", "must be of a kind with a known RDP", (event, orders.tolist()))


@_rdp_of_part.register
def _nothing(event: Nothing, orders: Array) -> Array:
    return np.zeros(orders.shape)


@_rdp_of_part.register
def _not_private(event: NotPrivate, orders: Array) -> Array:
    return np.full(orders.shape, math.inf)


@_rdp_of_part.register
def _mechanism(event: Mechanism, orders: Array) -> Array:
    return base_rdp(event, orders)


@_rdp_of_part.register
def _poisson_sampled(event: PoissonSampled, orders: Array) -> Array:
    if event.rate == 1.0:
        return base_rdp(event.event, orders)
    if event.moves_both_ways:
        return poisson_replace_one(event.event, event.presence, event.rate, orders)
    if event.event.adjacency is Adjacency.REPLACE_ONE:
        return amplified_replace_one(event.event, event.rate, orders)
    return poisson_add_or_remove(event.event, event.rate, orders)


@_rdp_of_part.register
def _fixed_size_sampled(event: FixedSizeSampled, orders: Array) -> Array:
    if event.rate == 1.0:
        return base_rdp(event.event, orders)
    return amplified_replace_one(event.event, event.rate, orders)
