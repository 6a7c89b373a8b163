"""Rényi divergence of mechanisms that are not sampled."""

from __future__ import annotations

import math
from functools import singledispatch

import numpy as np

from accountant.errors import InputError
from accountant.events import (
    DiscreteGaussian,
    DiscreteLaplace,
    Gaussian,
    Laplace,
    Mechanism,
)
from accountant.rdp_moments import Array, Pair, log_moment
from accountant.rdp_nodes import discrete_laplace_nodes

# A handful of correctly rounded operations err by less than this factor; it is added to be on the safe side.
ROUND_UP = 1.0 + 1e-12


@singledispatch
def base_rdp(mechanism: Mechanism, orders: Array) -> Array:
    """RDP of one mechanism at every order (infinite order: its pure epsilon), never rounded down."""
    raise InputError("event", "must be a mechanism with a known RDP", (mechanism, orders.tolist()))


@base_rdp.register
def _gaussian(mechanism: Gaussian, orders: Array) -> Array:
    """α Δ²/(2σ²) (Mironov 2017, arXiv 1702.07476v3, Corollary 3)."""
    return orders * (0.5 / mechanism.noise_multiplier**2) * ROUND_UP


@base_rdp.register
def _discrete_gaussian(mechanism: DiscreteGaussian, orders: Array) -> Array:
    """α Δ²/(2σ²), the continuous bound (Canonne, Kamath, Steinke 2020, arXiv 2004.00010v5, Proposition 5)."""
    return orders * (0.5 / mechanism.noise_multiplier**2) * ROUND_UP


@base_rdp.register
def _laplace(mechanism: Laplace, orders: Array) -> Array:
    """log{α/(2α−1) e^((α−1)s) + (α−1)/(2α−1) e^(−αs)}/(α−1), s = Δ/b.

    Mironov 2017, arXiv 1702.07476v3, Proposition 6.

    A query whose coordinates move by s₁, s₂, … in sum s costs no more than one coordinate that moves by s:
    the bound is convex in s and 0 at 0. (For every hockey-stick divergence too: of two coordinates, the
    log ratio is spread over [−s, s] like that of one coordinate, except that mass has left the two ends.)
    """
    shift = 1.0 / mechanism.noise_multiplier
    finite = np.isfinite(orders)
    a = np.where(finite, orders, 2.0)
    small = (a - 1.0) * shift < 30.0
    up, down = np.where(small, (a - 1.0) * shift, 0.0), np.where(small, a * shift, 0.0)
    moment = (a * _exp_less_linear(up) + (a - 1.0) * _exp_less_linear(-down)) / (2.0 * a - 1.0)
    # far out the second exponential is below e^-60 of the first, and the rounding covers it
    log_moments = np.where(small, np.log1p(moment), np.log(a / (2.0 * a - 1.0)) + (a - 1.0) * shift)
    return np.where(finite, np.minimum(log_moments / (a - 1.0) * ROUND_UP, shift * ROUND_UP), shift * ROUND_UP)


@base_rdp.register
def _discrete_laplace(mechanism: DiscreteLaplace, orders: Array) -> Array:
    """The sum over the grid; for a grid too fine to sum, min(ε, αε²/2) of its pure epsilon.

    The latter is Bun, Steinke 2016 (arXiv 1605.02065v1), Proposition 3.3. Coordinates as for Laplace noise.
    """
    pure = 1.0 / mechanism.noise_multiplier * ROUND_UP
    finite = np.isfinite(orders)
    result = np.where(finite, np.minimum(pure, 0.5 * pure * pure * np.where(finite, orders, 1.0)), pure)
    nodes = discrete_laplace_nodes(mechanism.noise_multiplier, mechanism.sensitivity, False)
    if nodes is not None and finite.any():
        a = orders[finite]
        exact = log_moment(Pair(nodes.log_mass, nodes.plus), a) / (a - 1.0) * (1.0 + 1e-9)
        result[finite] = np.minimum(result[finite], exact)
    return result


def _exp_less_linear(x: Array) -> Array:
    """e^x − 1 − x without cancellation."""
    near = np.abs(x) < 0.1
    small = np.where(near, x, 0.0)
    series = small**2 * sum((small**k / math.factorial(k + 2) for k in range(1, 11)), np.full(x.shape, 0.5))
    return np.where(near, series, np.expm1(x) - x)
