"""Privacy accounting: events, their composition, calibration, a ledger and budgets. No torch behind it.

    import accountant
    from accountant import Gaussian, PoissonSampled, Repeated

    step = PoissonSampled(0.01, Gaussian(noise_scale=1.1))
    accountant.epsilon(Repeated(step, 1000), delta=1e-5, method="pld")

Names are loaded when first used, so that `import accountant` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accountant.accountant import Accountant, epsilon
    from accountant.bounds import BoundsDisagree, Spent, delta_of, spent
    from accountant.budget import Budget, BudgetExceeded
    from accountant.calibration import Calibration, Channel, calibrate, calibrate_release
    from accountant.errors import InputError, LedgerBroken
    from accountant.events import (
        Adjacency,
        Composed,
        DiscreteGaussian,
        DiscreteLaplace,
        Event,
        FixedSizeSampled,
        Gaussian,
        Laplace,
        Neighbouring,
        NeighbouringMismatch,
        Nothing,
        NotPrivate,
        PoissonSampled,
        Repeated,
        Unit,
        canonical_json,
    )
    from accountant.interop import from_dp_event, from_dp_json, from_flower, from_opacus
    from accountant.ledger.chain import Reservation, TokenAlreadyUsed
    from accountant.ledger.ledger import Ledger
    from accountant.ledger.signing import OwnerKey
    from accountant.spending import Release, Spend

__all__ = [
    "Accountant",
    "Adjacency",
    "BoundsDisagree",
    "Budget",
    "BudgetExceeded",
    "Calibration",
    "Channel",
    "Composed",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "Event",
    "FixedSizeSampled",
    "Gaussian",
    "InputError",
    "Laplace",
    "Ledger",
    "LedgerBroken",
    "Neighbouring",
    "NeighbouringMismatch",
    "NotPrivate",
    "Nothing",
    "OwnerKey",
    "PoissonSampled",
    "Release",
    "Repeated",
    "Reservation",
    "Spend",
    "Spent",
    "TokenAlreadyUsed",
    "Unit",
    "calibrate",
    "calibrate_release",
    "canonical_json",
    "delta_of",
    "epsilon",
    "from_dp_event",
    "from_dp_json",
    "from_flower",
    "from_opacus",
    "spent",
]

_HOME = {
    "accountant": ("Accountant", "epsilon"),
    "bounds": ("BoundsDisagree", "Spent", "delta_of", "spent"),
    "budget": ("Budget", "BudgetExceeded"),
    "calibration": ("Calibration", "Channel", "calibrate", "calibrate_release"),
    "errors": ("InputError", "LedgerBroken"),
    "events": (
        *("Composed", "DiscreteGaussian", "DiscreteLaplace", "Event", "FixedSizeSampled", "Gaussian"),
        *("Adjacency", "Neighbouring", "NeighbouringMismatch", "Unit"),
        *("Laplace", "NotPrivate", "Nothing", "PoissonSampled", "Repeated", "canonical_json"),
    ),
    "interop": ("from_dp_event", "from_dp_json", "from_flower", "from_opacus"),
    "ledger.chain": ("Reservation", "TokenAlreadyUsed"),
    "ledger.ledger": ("Ledger",),
    "ledger.signing": ("OwnerKey",),
    "spending": ("Release", "Spend"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> object:
    """The public name, from the module it lives in."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
