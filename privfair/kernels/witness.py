"""The MMD witness function: fixed for a round, evaluated at every record of every local step."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

import numpy as np

from accountant.errors import InputError, require_positive
from privfair.kernels.base import Form, Kernel, SumKernel, apply, as_scores, as_weights
from privfair.kernels.exponential import ExponentialPolynomial
from privfair.kernels.sorted_sums import SortedSums
from privfair.kernels.tables import NODES, ScoreTable, condensed
from privfair.util import FloatArray

_DIRECT_BLOCK = 1 << 13  # kernel values held at a time where a sum is taken directly: small enough for the cache


class Embedding:
    """z ↦ Σ_j w_j κ(z, y_j), with derivatives: exact sums over sorted samples, tables for smooth kernels.

    `error` and `slope_error` bound the distance to the exact sum and its derivative; both are 0 (up to rounding)
    for energy, Laplace and Matérn kernels, with Laplace noise on or off.
    """

    def __init__(
        self,
        kernel: Kernel,
        samples: FloatArray,
        weights: FloatArray,
        *,
        domain: tuple[float, float] | None = None,
        tolerance: float = 1e-8,
        tie: float = 0.0,
    ) -> None:
        """Sort or tabulate once. Outside `domain` a smooth kernel is summed directly: slower, and exact.

        A sample within tie·max(1, |sample|) of z is taken to be at z, where a kink gives the mean of its two sides.
        """
        exponential, self._smooth = _split(kernel)
        self.sums = None if exponential is None else SortedSums(exponential, samples, weights, tie)
        self.error = self.slope_error = 0.0
        self.table: ScoreTable | None = None
        if self._smooth is not None:
            low, high = domain if domain is not None else _default_domain(samples)
            bounds = self._smooth.derivative_bound(NODES), self._smooth.derivative_bound(NODES + 1)
            self._samples, self._weights, *errors = condensed(samples, weights, bounds, tolerance / 2)
            total = float(np.abs(weights).sum())
            self.table = ScoreTable(self._direct, low=low, high=high, bound=bounds[0] * total, tolerance=tolerance / 2)
            self.error, self.slope_error = errors[0] + self.table.error, errors[1] + self.table.slope_error

    def evaluate(self, z: FloatArray, order: int = 0) -> FloatArray:
        """The order-th derivative at each z."""
        return self.derivatives(z, (order,))[0]

    def derivatives(self, z: FloatArray, orders: Sequence[int]) -> list[FloatArray]:
        """The asked derivatives at each z, with one look-up for all."""
        totals = [np.zeros_like(z) for _ in orders] if self.sums is None else self.sums.derivatives(z, orders)
        if self.table is not None:
            inside = self.table.contains(z)
            everywhere = bool(inside.all())
            looked_up = self.table.derivatives(z if everywhere else z[inside], orders)
            for total, part, order in zip(totals, looked_up, orders, strict=True):
                if everywhere:
                    total += part
                else:
                    total[inside] += part
                    total[~inside] += self._direct(z[~inside], order, alone=True)
        return totals

    def _direct(self, z: FloatArray, order: int = 0, *, alone: bool = False) -> FloatArray:
        """The sum of the smooth part, term by term, in blocks of bounded memory."""
        if self._smooth is None:
            return np.zeros_like(z)
        return direct_sum(self._smooth.form, z, self._samples, self._weights, order, alone=alone)


class Witness(Embedding):
    """C(z) = Σ w⁰ κ(z, y⁰) − Σ w¹ κ(z, y¹): call it, or its `derivative`, on numbers, arrays or tensors."""

    def __call__(self, z: Any) -> Any:
        """C(z), differentiable in torch."""
        return apply(self, z)

    def derivative(self, z: Any) -> Any:
        """C′(z)."""
        return apply(self, z, 1)

    def with_derivative(self, z: Any) -> tuple[FloatArray, FloatArray]:
        """C(z) and C′(z) of an array, with one look-up for both."""
        array = np.ascontiguousarray(z, dtype=np.float64)
        value, slope = self.derivatives(array.reshape(-1), (0, 1))
        return value.reshape(array.shape), slope.reshape(array.shape)


def witness(
    y0: Any,
    y1: Any,
    kernel: Kernel,
    weights0: Any = None,
    weights1: Any = None,
    *,
    domain: tuple[float, float] | None = None,
    tolerance: float = 1e-8,
) -> Witness:
    """The witness function of the two samples: C(z) = mean κ(z, y) over y0 − mean κ(z, y) over y1.

    Weights (one per score, any sign, positive sum) replace the plain means. Energy, Laplace and Matérn kernels
    are exact at O(log n) an evaluation. Smooth kernels are tabulated on `domain` (default: the range of the scores,
    widened to [0, 1] if they lie in it) with |error| ≤ `tolerance` for C and for C′, and summed directly outside it.
    """
    first, second = as_scores("y0", y0), as_scores("y1", y1)
    w0, w1 = as_weights("weights0", weights0, first.size), as_weights("weights1", weights1, second.size)
    require_positive("tolerance", tolerance)
    if domain is not None:
        try:
            low, high = map(float, domain)
        except (TypeError, ValueError, OverflowError):
            raise InputError("domain", "must be two numbers, (low, high)", domain) from None
        if not (isfinite(low) and isfinite(high) and low < high):
            raise InputError("domain", "must be (low, high), finite, with low below high", f"{low:g} to {high:g}")
        domain = low, high
    return Witness(
        kernel, np.concatenate([first, second]), np.concatenate([w0, -w1]), domain=domain, tolerance=tolerance
    )


def direct_sum(
    form: Form, z: FloatArray, samples: FloatArray, weights: FloatArray, order: int = 0, *, alone: bool = False
) -> FloatArray:
    """Σ_j w_j v⁽ᵒʳᵈᵉʳ⁾(z − y_j) for each z, term by term, in blocks of bounded memory.

    `alone`: each z by itself, to the last bit.
    """
    from privfair.per_record import products

    result = np.empty_like(z)
    rows = max(1, _DIRECT_BLOCK // samples.size)
    for start in range(0, z.size, rows):
        d = z[start : start + rows, None] - samples
        values = form.evaluate(d.reshape(-1), order).reshape(d.shape)
        result[start : start + rows] = products(values, weights[:, None])[:, 0] if alone else values @ weights
    return result


def _split(kernel: Kernel) -> tuple[ExponentialPolynomial | None, Kernel | None]:
    """The part of a kernel that sorted sums can take, and its smooth part."""
    parts = kernel.parts if isinstance(kernel, SumKernel) else ((1.0, kernel),)
    exact = tuple((c, k) for c, k in parts if k.form.exponential is not None)
    smooth = tuple((c, k) for c, k in parts if k.form.exponential is None)
    return _combined(exact).form.exponential if exact else None, _combined(smooth) if smooth else None


def _combined(parts: tuple[tuple[float, Kernel], ...]) -> Kernel:
    """The sum of the parts; a single one as it is."""
    return parts[0][1] if len(parts) == 1 and parts[0][0] == 1.0 else SumKernel(parts)


def _default_domain(samples: FloatArray) -> tuple[float, float]:
    """The range of the samples; all of [0, 1] if they lie in it; never empty."""
    low, high = float(samples.min()), float(samples.max())
    if low >= 0 and high <= 1:
        return 0.0, 1.0
    return (low, high) if low < high else (low - 0.5, high + 0.5)
