"""What of a Rényi filter is left, said in ε: of which further releases is it certain that they fit?

A filter counts Rényi divergence at one order, and an ε by itself does not say how much of that a release costs. For two
kinds of release it does, and for them the answers here are exact or on the safe side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from accountant.gaussian_profile import gaussian_epsilon

# Sums of many costs are rounded up, each by less than this.
SAFETY = 1.0 - 1e-9
DIGITS = 3


@dataclass(frozen=True)
class Headroom:
    """The largest ε of further releases, all taken together, that certainly fit; 0 when nothing does.

    gaussian: at the budget's δ, of Gaussian noise on all records (not on a sample of them).
    pure: with δ = 0, whatever the releases are.
    """

    gaussian: float
    pure: float


def headroom(left: float, order: float, delta: float) -> Headroom:
    """What fits into `left`, Rényi divergence at the order."""
    if not left > 0:
        return Headroom(0.0, 0.0)
    return Headroom(gaussian_releases(left * SAFETY, order, delta), pure_epsilon(left * SAFETY, order))


def pure_epsilon(left: float, order: float) -> float:
    """max(r, √(2r/α)): what is ε-private with δ = 0 has a Rényi divergence of at most min(ε, αε²/2).

    Bun, Steinke 2016 (arXiv 1605.02065v1), Proposition 3.3; and no Rényi divergence is above the largest log-ratio.
    """
    return max(left, math.sqrt(2.0 * left / order))


def gaussian_releases(left: float, order: float, delta: float) -> float:
    """ε at δ of the Gaussian release whose Rényi divergence α/(2z²) is `left`, from below.

    Gaussian releases compose to a Gaussian release, whose exact ε (Balle, Wang 2018, arXiv 1805.06530v2, Theorem 8)
    falls as z grows: all that have a smaller ε together, by whatever bound, cost less.
    """
    return gaussian_epsilon(math.sqrt(2.0 * left / order), delta)


def rounded_down(epsilon: float) -> str:
    """An ε that fits, to three digits: 1.77."""
    if not 0 < epsilon < math.inf:
        return f"{epsilon:g}"
    unit = 10.0 ** (math.floor(math.log10(epsilon)) - DIGITS + 1)
    return f"{math.floor(epsilon / unit) * unit:.{DIGITS}g}"


def rounded_up(epsilon: float) -> str:
    """An ε that was spent, to three digits: 2.29."""
    if not 0 < epsilon < math.inf:
        return "∞" if epsilon > 0 else "0"
    unit = 10.0 ** (math.floor(math.log10(epsilon)) - DIGITS + 1)
    return f"{math.ceil(epsilon / unit - 1e-9) * unit:.{DIGITS}g}"
