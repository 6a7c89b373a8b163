"""Mercer's expansion of a centred kernel on an interval: its eigenfunctions, as polynomials.

    κ̄(x, y) = κ(x, y) − m(x) − m(y) + M = Σ_j λ_j e_j(x) e_j(y),    m(x) = mean of κ(x, ·), M = mean of m,

under the uniform law on [low, high]. Centring changes a witness function by a constant and nothing else, because the
two groups' weights have the same sum; and it makes the energy kernel, which is only conditionally positive definite,
positive definite. The constants are what centring takes out, so the expansion is Galerkin's in the Legendre
polynomials without the first. Eigenfunctions of kernels with a kink on the diagonal are smooth all the same, and the
integrals are split there: eight to twelve digits, which a rule on one grid (Nyström) does not reach for such kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.polynomial import legendre

from privfair.arrays import FloatArray
from privfair.kernels.base import Kernel

DEGREE = 192  # of the polynomials: enough for 64 eigenfunctions, each of which swings once more than the one before
_NODES = 256  # of each half of an integral
_SMALLEST = 1e-12  # eigenvalues below this share of the first are rounding
_NEGLIGIBLE = 1e-10  # of the largest coefficient: what is left out of a polynomial


@dataclass(frozen=True, eq=False)
class Expansion:
    """The eigenvalues, falling, and coefficients (degree + 1, features) of √λ_j·e_j in Legendre polynomials.

    `trace`: the mean of κ̄(x, x), which all eigenvalues together add up to.
    """

    eigenvalues: FloatArray
    coefficients: FloatArray
    trace: float


@lru_cache(maxsize=32)
def mercer(kernel: Kernel, length: float) -> Expansion:
    """The expansion on an interval of this length, computed once for each kernel and length."""
    matrix = _matrix(kernel, length)
    values, vectors = [], []
    for first in (1, 2):  # odd and even functions around the middle never mix, nor do their nearly equal eigenvalues
        block = np.arange(first, DEGREE + 1, 2)
        found, columns = np.linalg.eigh(matrix[np.ix_(block, block)])
        whole = np.zeros((DEGREE + 1, block.size))
        whole[block] = columns
        values.append(found)
        vectors.append(whole)
    eigenvalues, columns = np.concatenate(values), np.concatenate(vectors, axis=1)
    order = [int(j) for j in np.argsort(-eigenvalues) if eigenvalues[j] > _SMALLEST * eigenvalues.max()]
    eigenvalues, columns = eigenvalues[order], columns[:, order]
    coefficients = columns * np.sqrt(eigenvalues) * _norms()[:, None]
    # one sign for everybody: above 0 at the lower end, where P_n = (−1)ⁿ
    coefficients *= np.where((-1.0) ** np.arange(DEGREE + 1) @ coefficients < 0, -1.0, 1.0)
    return Expansion(eigenvalues, coefficients, float(kernel.profile(0.0)) - float(matrix[0, 0]))


def trimmed(coefficients: FloatArray) -> FloatArray:
    """The polynomials without the high degrees in which there is only rounding; what is left defines the features."""
    size = np.abs(coefficients).max(axis=1) / np.abs(coefficients).max()
    return coefficients[: int(np.flatnonzero(size > _NEGLIGIBLE)[-1]) + 1]


def _norms() -> FloatArray:
    """√(2n + 1): what makes Legendre polynomials orthonormal under the uniform law on [−1, 1]."""
    norms: FloatArray = np.sqrt(2.0 * np.arange(DEGREE + 1) + 1)
    return norms


def _matrix(kernel: Kernel, length: float) -> FloatArray:
    """∬ p_a(x) κ(x, y) p_b(y) under the uniform law, p_n the orthonormal polynomials; inner integrals split at x."""
    nodes, weights = legendre.leggauss(_NODES)
    norms, inner = _norms(), np.empty((_NODES, DEGREE + 1))
    half = _NODES // 2
    for row, t in zip(inner[:half], nodes[:half], strict=True):
        below, above = (t + 1) / 2, (1 - t) / 2  # half the lengths of [−1, t] and [t, 1]
        y = np.concatenate([-1 + below * (nodes + 1), t + above * (nodes + 1)])
        mass = np.concatenate([below * weights, above * weights]) / 2
        row[:] = (mass * kernel.form.evaluate((t - y) * length / 2)) @ legendre.legvander(y, DEGREE)
    inner[half:] = inner[:half][::-1] * (-1.0) ** np.arange(DEGREE + 1)  # the mirror image
    found = (legendre.legvander(nodes, DEGREE) * (weights / 2)[:, None]).T @ inner * np.outer(norms, norms)
    symmetric: FloatArray = (found + found.T) / 2
    return symmetric
