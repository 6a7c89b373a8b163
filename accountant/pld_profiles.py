"""Hockey-stick divergences δ(ε) and atoms of dominating pairs that dp-accounting has no constructor for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from accountant.errors import InputError
from accountant.events import (
    Adjacency,
    DiscreteGaussian,
    DiscreteLaplace,
    FixedSizeSampled,
    Gaussian,
    Laplace,
    Mechanism,
    OnGrid,
    PoissonSampled,
)
from accountant.rdp import TAIL, Array, Nodes, Pair, discrete_laplace_nodes, gaussian_grid, log_mixture

Profile = Callable[[Array], Array]
MOST_ATOMS = 2_000_000
FAR = 10.5  # standard deviations; beyond them lies less than 1e-25 of a normal distribution
TOO_FINE = "Count in coarser steps, or use method='rdp'."


class TooFine(InputError):
    """The loss grid would need too many cells."""


@dataclass(frozen=True)
class Curve:
    """δ as a function of ε, for all real ε, and the losses that carry all but 1e-22 of the mass."""

    delta: Profile
    bottom: float
    top: float


def gaussian_curve(multiplier: float) -> Curve:
    """δ(ε) of one unsampled Gaussian release."""
    top = 0.5 / multiplier**2 + FAR / multiplier
    return Curve(lambda epsilon: gaussian_delta(epsilon, multiplier), -top, top)


def laplace_curve(multiplier: float) -> Curve:
    """δ(ε) of one unsampled Laplace release: 1 − e^((ε−s)/2) for |ε| ≤ s = 1/b."""
    s = 1.0 / multiplier

    def delta(epsilon: Array) -> Array:
        return np.where(epsilon < -s, -np.expm1(epsilon), -np.expm1(np.minimum(0.0, (epsilon - s) / 2.0)))

    return Curve(delta, -s, s)


def poisson_curves(rate: float, unsampled: Curve) -> tuple[Curve, Curve]:
    """δ(ε) of M from N and of N from M, M = (1−q) N + q N₊, from H, that of N₊ from N (and of N from N₊).

    q H(log(1 + (e^ε − 1)/q)) above log(1−q), 1 − e^ε below; and (1 − (1−q)e^ε) H(log(q e^ε/(1 − (1−q)e^ε))) below
    −log(1−q), 0 above. The first is the larger for ε ≥ 0, but the two compose apart.
    """
    edge = math.log1p(-rate)

    def removal(epsilon: Array) -> Array:
        above = epsilon > edge
        inner = _amplified(rate, np.where(above, epsilon, 0.0))
        return np.where(above, rate * unsampled.delta(inner), -np.expm1(np.minimum(epsilon, 0.0)))

    def addition(epsilon: Array) -> Array:
        below = epsilon < -edge
        safe = np.where(below, epsilon, 0.0)
        rest = -np.expm1(safe + edge)  # 1 − (1−q) e^ε
        return np.where(below, rest * unsampled.delta(math.log(rate) + safe - np.log(rest)), 0.0)

    top = float(log_mixture(rate, np.array([unsampled.top]))[0])
    return Curve(removal, edge, top), Curve(addition, -top, -edge)


def amplified_curve(rate: float, unsampled: Curve) -> Curve:
    """δ(ε) under replace-one of continuous noise on a sample that has a given unit with probability γ.

    γ H(log(1 + (e^ε − 1)/γ)) for ε ≥ 0, H the unsampled divergence; for ε < 0 the relation's symmetry gives
    1 − e^ε + e^ε δ(−ε). See `accountant.rdp.amplified_replace_one` for the theorem.
    """

    def delta(epsilon: Array) -> Array:
        size = np.abs(epsilon)
        amplified = rate * unsampled.delta(_amplified(rate, size))
        return np.where(epsilon >= 0, amplified, -np.expm1(-size) + np.exp(-size) * amplified)

    top = float(log_mixture(rate, np.array([unsampled.top]))[0])
    return Curve(delta, -top, top)


def replaced_curve(event: PoissonSampled) -> Curve:
    """δ(ε) of Poisson-sampled continuous noise under replace-one: of M₊ from M₋, M± = (1−q) N + q N±.

    The log ratio grows with y, so the best test is a threshold; bisection finds it to the last digit.
    """
    from scipy.special import ndtr

    rate, z = event.rate, event.event.noise_scale / event.presence
    gaussian = isinstance(event.event, Gaussian)
    end = 1.0 + FAR * z if gaussian else 1.0

    def log_ratio(y: Array, shift: float) -> Array:
        if gaussian:
            return (shift * y - 0.5) / z**2
        return (np.abs(y) - np.abs(y - shift)) / z

    def above(y: Array, shift: float) -> Array:
        if gaussian:
            upper: Array = ndtr((shift - y) / z)
            return upper
        tail = 0.5 * np.exp(-np.abs(y - shift) / z)
        return np.where(y >= shift, tail, 1.0 - tail)

    def loss(y: Array) -> Array:
        return log_mixture(rate, log_ratio(y, 1.0)) - log_mixture(rate, log_ratio(y, -1.0))

    top = float(loss(np.array([end]))[0])

    def delta(epsilon: Array) -> Array:
        low, high = np.full(epsilon.shape, -end), np.full(epsilon.shape, end)
        for _ in range(60):
            middle = 0.5 * (low + high)
            beyond = loss(middle) > epsilon
            high, low = np.where(beyond, middle, high), np.where(beyond, low, middle)
        plus = (1.0 - rate) * above(high, 0.0) + rate * above(high, 1.0)
        minus = (1.0 - rate) * above(high, 0.0) + rate * above(high, -1.0)
        inside = np.maximum(plus - np.exp(np.minimum(epsilon, top)) * minus, 0.0)
        if gaussian:
            return inside
        return np.where(epsilon >= top, 0.0, np.where(epsilon <= -top, -np.expm1(epsilon), inside))

    return Curve(delta, -top, top)


def unsampled_curve(mechanism: Mechanism) -> Curve:
    """δ(ε) of one unsampled release of continuous noise."""
    if isinstance(mechanism, Gaussian):
        return gaussian_curve(mechanism.noise_multiplier)
    if isinstance(mechanism, Laplace):
        return laplace_curve(mechanism.noise_multiplier)
    raise InputError("event", "must be continuous noise", mechanism)


def gaussian_delta(epsilon: Array, multiplier: float) -> Array:
    """Φ(1/2z − εz) − e^ε Φ(−1/2z − εz) (Balle, Wang 2018, arXiv 1805.06530v2, Theorem 8), at least 0."""
    from scipy.special import log_ndtr

    half, scaled = 0.5 / multiplier, epsilon * multiplier
    first, second = log_ndtr(half - scaled), epsilon + log_ndtr(-half - scaled)
    result: Array = np.exp(first) * -np.expm1(np.minimum(second - first, 0.0))
    return result


def _amplified(rate: float, epsilon: Array) -> Array:
    """log(1 + (e^ε − 1)/q): the unsampled ε behind a sampled one; −∞ at log(1−q)."""
    with np.errstate(divide="ignore"):
        near = np.log1p(np.maximum(np.expm1(np.minimum(epsilon, 30.0)) / rate, -1.0))
    return np.where(epsilon > 30.0, epsilon - math.log(rate), near)


def grid_pairs(event: OnGrid | PoissonSampled | FixedSizeSampled) -> tuple[Pair, Pair | None]:
    """Dominating pairs of integer noise, atom by atom: (removal, addition), or one pair that covers both."""
    mechanism = event if isinstance(event, OnGrid) else event.event
    rate = 1.0 if isinstance(event, OnGrid) else event.rate
    if rate == 1.0:
        nodes = _grid_nodes(mechanism, mechanism.sensitivity, False)
        return Pair(nodes.log_mass, nodes.plus), None
    if isinstance(event, PoissonSampled) and event.moves_both_ways:
        nodes = _grid_nodes(mechanism, event.presence, True)
        below = log_mixture(rate, nodes.minus)
        return Pair(nodes.log_mass + below, log_mixture(rate, nodes.plus) - below), None
    nodes = _grid_nodes(mechanism, mechanism.sensitivity, False)
    if mechanism.adjacency is Adjacency.REPLACE_ONE:
        return _amplified_pair(nodes, rate), None
    ratio = log_mixture(rate, nodes.plus)
    return Pair(nodes.log_mass, ratio), Pair(nodes.log_mass + ratio, -ratio)


def _amplified_pair(nodes: Nodes, rate: float) -> Pair:
    """The atoms whose divergences are those of `amplified_curve`; what is left over has no loss."""
    upper = nodes.plus > 0
    mass, ratio = nodes.log_mass[upper], log_mixture(rate, nodes.plus[upper])
    left = 1.0 - math.fsum(np.exp(mass + ratio)) - math.fsum(np.exp(mass))
    pair = Pair(mass, ratio).joined(Pair(mass + ratio, -ratio))
    return pair.joined(Pair(np.array([math.log(max(left, 1e-300))]), np.zeros(1)))


def _grid_nodes(mechanism: Mechanism, shift: float, both_shifts: bool) -> Nodes:
    multiplier, steps = mechanism.noise_scale / shift, int(shift)
    if isinstance(mechanism, DiscreteLaplace):
        nodes = discrete_laplace_nodes(multiplier, steps, both_shifts, MOST_ATOMS)
    elif isinstance(mechanism, DiscreteGaussian):
        side = 1.0 + TAIL * multiplier
        nodes = gaussian_grid(multiplier, -side, side, steps, MOST_ATOMS)
    else:
        raise InputError("event", "must be noise on a grid", mechanism)
    if nodes is None:
        raise TooFine("a grid of this fineness", "cannot be handled by PLD", mechanism, TOO_FINE)
    return nodes
