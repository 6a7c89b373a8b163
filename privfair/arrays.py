"""The array type that mathematics in this package speaks."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.floating[Any]]  # float64 in practice; numpy's own polynomial functions promise no more
