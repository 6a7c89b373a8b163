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
    from accountant.accountant import Accountant, Release, epsilon
    from accountant.bounds import BoundsDisagree, Spent, delta_of, spent
    from accountant.budget import Budget, BudgetExceeded
    from accountant.calibration import Calibration, Channel, calibrate
    from accountant.chain import LedgerBroken
    from accountant.errors import InputError
    from accountant.events import (
        Composed,
        DiscreteGaussian,
        DiscreteLaplace,
        Event,
        FixedSizeSampled,
        Gaussian,
        Laplace,
        Nothing,
        NotPrivate,
        PoissonSampled,
        Repeated,
        canonical_json,
    )
    from accountant.filters import RenyiFilter
    from accountant.foreign import from_dp_event, from_dp_json, from_flower, from_opacus
    from accountant.ledger import Ledger
    from accountant.neighbouring import Adjacency, Neighbouring, NeighbouringMismatch, Unit
    from accountant.outbox import Reservation, TokenAlreadyUsed
    from accountant.release_calibration import calibrate_release
    from accountant.signing import OwnerKey
    from accountant.spending import Spend

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
    "RenyiFilter",
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
    "accountant": ("Accountant", "Release", "epsilon"),
    "bounds": ("BoundsDisagree", "Spent", "delta_of", "spent"),
    "budget": ("Budget", "BudgetExceeded"),
    "calibration": ("Calibration", "Channel", "calibrate"),
    "chain": ("LedgerBroken",),
    "errors": ("InputError",),
    "events": (
        *("Composed", "DiscreteGaussian", "DiscreteLaplace", "Event", "FixedSizeSampled", "Gaussian"),
        *("Laplace", "NotPrivate", "Nothing", "PoissonSampled", "Repeated", "canonical_json"),
    ),
    "filters": ("RenyiFilter",),
    "foreign": ("from_dp_event", "from_dp_json", "from_flower", "from_opacus"),
    "ledger": ("Ledger",),
    "neighbouring": ("Adjacency", "Neighbouring", "NeighbouringMismatch", "Unit"),
    "outbox": ("Reservation", "TokenAlreadyUsed"),
    "release_calibration": ("calibrate_release",),
    "signing": ("OwnerKey",),
    "spending": ("Spend",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> object:
    """The public name, from the module it lives in."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
