"""What ε and δ mean for somebody who guesses: a bound that needs no mathematics to be read."""

from __future__ import annotations

import math

from accountant.errors import InputError


def right_guesses(epsilon: float, delta: float) -> float:
    """The largest share of right guesses: (e^ε + δ) / (e^ε + 1).

    Somebody sees everything that was released, holds two neighbouring datasets for equally likely (a record took part,
    or it did not), and guesses which one it was. Let t be how often "it took part" is said when it did, and f when it
    did not. By (ε, δ)-differential privacy t ≤ e^ε f + δ and 1 − f ≤ e^ε (1 − t) + δ. Adding the two,
    (t + 1 − f)(1 + e^ε) ≤ 2 e^ε + 2 δ; and (t + 1 − f) / 2 is the share of right guesses.
    (Kairouz, Oh & Viswanath 2015, arXiv 1311.0776, Theorem 2.1 has the two conditions.)
    """
    if math.isnan(epsilon) or epsilon < 0:
        raise InputError("epsilon", "must be 0 or more", epsilon)
    if not 0 <= delta <= 1:
        raise InputError("delta", "must be between 0 and 1", delta)
    odds = math.exp(-epsilon)  # e^ε overflows where this is 0
    return (1 + delta * odds) / (1 + odds)


def shown_guesses(epsilon: float, delta: float) -> str:
    """That share in per cent, rounded up: a bound must not look smaller than it is."""
    return f"{math.ceil(1000 * right_guesses(epsilon, delta) - 1e-9) / 10:.1f}%"
