"""Exact integer noise from OpenDP: the only file that imports it.

OpenDP draws by the algorithms of Canonne, Kamath, Steinke 2020 (arXiv 2004.00010v5) in rational arithmetic on random
bits of the operating system, so the laws are exact for the floating-point scale it is given: nothing is rounded. How
long a draw takes depends on what is drawn (Jin, McMurtry, Rubinstein, Ohrimenko 2021, arXiv 2112.05307v4): timing is
not covered.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray


def opendp_discrete_gaussian(scale: float, size: int) -> NDArray[np.int64]:
    """Independent integers with mass ∝ exp(−k²/2σ²), σ = scale."""
    return _noise(_gaussian(scale), size)


def opendp_discrete_laplace(scale: float, size: int) -> NDArray[np.int64]:
    """Independent integers with mass ∝ exp(−|k|/b), b = scale."""
    return _noise(_laplace(scale), size)


def _noise(measurement: Callable[[Any], Any], size: int) -> NDArray[np.int64]:
    """A release of zeros is the noise itself; the callers' bound on the scale keeps it far from the ends of int64."""
    return np.asarray(measurement(np.zeros(size, dtype=np.int64)), dtype=np.int64)


@lru_cache(maxsize=64)
def _gaussian(scale: float) -> Callable[[Any], Any]:
    # Imported when first drawn from: half a second that runs without private noise need not wait for.
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_gaussian
    from opendp.metrics import l2_distance
    from opendp.mod import enable_features

    enable_features("contrib")  # OpenDP's own switch: components that have not finished its vetting
    return make_gaussian(vector_domain(atom_domain(T="i64")), l2_distance(T="i64"), scale=scale)


@lru_cache(maxsize=64)
def _laplace(scale: float) -> Callable[[Any], Any]:
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_laplace
    from opendp.metrics import l1_distance
    from opendp.mod import enable_features

    enable_features("contrib")
    return make_laplace(vector_domain(atom_domain(T="i64")), l1_distance(T="i64"), scale=scale)
