"""What ε means for somebody who guesses."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accountant.conversion import gaussian_delta
from accountant.errors import InputError
from privfair.reports.figures import right_guesses, shown_guesses

EPSILONS = st.floats(0, 30)
DELTAS = st.floats(0, 1)


@given(EPSILONS)
def test_randomised_response_reaches_it(epsilon: float) -> None:
    """Telling the truth with odds e^ε is ε-private, and whoever believes it is right that often."""
    assert right_guesses(epsilon, 0) == pytest.approx(math.exp(epsilon) / (1 + math.exp(epsilon)), rel=1e-12)


@given(EPSILONS, DELTAS)
def test_it_is_the_maximum_that_the_definition_allows(epsilon: float, delta: float) -> None:
    """Over all ways to guess: for every rate of false alarms the most right ones that (ε, δ) allows."""
    false_alarms = np.linspace(0, 1, 20_001)
    odds = math.exp(epsilon)
    hits = np.minimum(np.minimum(odds * false_alarms + delta, 1 - (1 - false_alarms - delta) / odds), 1.0)
    best = float(np.max((hits + 1 - false_alarms) / 2))
    bound = right_guesses(epsilon, delta)
    assert best <= bound + 1e-12
    # the maximum lies between two points of the grid, where a change of the rate changes the hits e^ε-fold at most
    assert bound <= best + 0.5 * (odds + 1) / 20_000


@pytest.mark.parametrize("multiplier", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_no_attack_on_gaussian_noise_beats_it(multiplier: float, epsilon: float) -> None:
    """The best guess from one noisy number is right Φ(1/2σ) of the time."""
    best = 0.5 * (1 + math.erf(1 / (2 * multiplier) / math.sqrt(2)))
    assert best <= right_guesses(epsilon, gaussian_delta(epsilon, multiplier))


@given(EPSILONS, DELTAS)
def test_it_is_shown_rounded_up(epsilon: float, delta: float) -> None:
    shown = float(shown_guesses(epsilon, delta).removesuffix("%")) / 100
    assert right_guesses(epsilon, delta) - 1e-11 <= shown <= right_guesses(epsilon, delta) + 0.00101


def test_ends() -> None:
    assert right_guesses(0, 0) == 0.5
    assert right_guesses(math.inf, 0) == 1.0
    assert right_guesses(10_000.0, 1e-5) == 1.0
    assert right_guesses(0, 1) == 1.0
    assert shown_guesses(3, 1e-5) == "95.3%"


def test_what_is_no_privacy_parameter_is_refused() -> None:
    with pytest.raises(InputError, match=r"epsilon must be 0 or more; found -1"):
        right_guesses(-1, 0)
    with pytest.raises(InputError, match=r"delta must be between 0 and 1; found 2"):
        right_guesses(1, 2)
