"""Which versions of what this is running on."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

PACKAGES = (
    "privfair", "torch", "opacus", "tenseal", "numba", "numpy", "pandas", "dp-accounting", "opendp", "sqlalchemy",
    "flwr", "ray", "pyarrow", "psycopg",
)  # fmt: skip


ARITHMETIC = ("privfair", "torch", "opacus", "numba", "numpy")  # what the last bits of a holder's numbers depend on


def installed() -> dict[str, str | None]:
    """The versions of Python and of the packages that matter; None for one that is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found
