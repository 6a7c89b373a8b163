"""Lower bounds on ε that are measured: statistics for attacks on a mechanism, without any attack in them.

An upper bound is proved, a lower bound is shown: who tells two neighbouring datasets apart too well has refuted the
upper bound, whatever was proved. Nothing here knows torch or privfair; an attack hands over numbers.
"""

from accountant.empirical.one_run import (
    many_runs_p_value,
    one_run_accuracy,
    one_run_curve_p_value,
    one_run_epsilon,
    one_run_p_value,
)
from accountant.empirical.two_worlds import (
    Distinguished,
    Rates,
    TradeOff,
    accuracy_p_value,
    at_least,
    at_most,
    distinguish,
    epsilon_from_rates,
    implied_factor,
    rates_p_value,
)

__all__ = [
    "Distinguished",
    "Rates",
    "TradeOff",
    "accuracy_p_value",
    "at_least",
    "at_most",
    "distinguish",
    "epsilon_from_rates",
    "implied_factor",
    "many_runs_p_value",
    "one_run_accuracy",
    "one_run_curve_p_value",
    "one_run_epsilon",
    "one_run_p_value",
    "rates_p_value",
]
