"""Functions of one real variable, applied elementwise to numpy arrays and torch tensors, with gradients.

The arithmetic is numpy in double precision, whatever comes in; the result has the type that came in. For batches
of a few hundred scores numpy is faster than torch, and one implementation serves both. torch is imported only when
somebody hands over a tensor.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accountant.errors import InputError
from privfair.arrays import FloatArray

if TYPE_CHECKING:
    import torch


class SmoothFunction(Protocol):
    """A function of one real variable that knows its derivatives."""

    def evaluate(self, x: FloatArray, order: int = 0) -> FloatArray:
        """The order-th derivative at each x."""
        ...


def is_tensor(x: object) -> bool:
    """Whether x is a torch tensor; does not import torch."""
    torch_module = sys.modules.get("torch")
    return torch_module is not None and isinstance(x, torch_module.Tensor)


@overload
def apply(function: SmoothFunction, x: torch.Tensor, order: int = 0) -> torch.Tensor: ...
@overload
def apply(function: SmoothFunction, x: ArrayLike, order: int = 0) -> Any: ...
def apply(function: SmoothFunction, x: Any, order: int = 0) -> Any:
    """The order-th derivative of the function at each element of x, in the type and shape of x."""
    if is_tensor(x):
        import torch

        from privfair.kernels.autograd import Elementwise

        return Elementwise.apply(x if x.is_floating_point() else x.to(torch.get_default_dtype()), function, order)
    array = np.asarray(x)
    result = evaluate(function, array, order)
    return result if array.ndim else result.dtype.type(result)


def evaluate(function: SmoothFunction, x: NDArray[Any], order: int) -> NDArray[Any]:
    """As `apply`, for numpy arrays: computed in double precision on a flat view, returned in the type of x."""
    flat = np.ascontiguousarray(x, dtype=np.float64).reshape(-1)
    result = function.evaluate(flat, order).reshape(x.shape)
    return result.astype(x.dtype) if x.dtype in (np.float32, np.float16) else result


def difference(x: Any, y: Any) -> Any:
    """x − y with broadcasting; a tensor if either is one."""
    if is_tensor(x) or is_tensor(y):
        import torch

        like = x if is_tensor(x) else y
        dtype = like.dtype if like.is_floating_point() else torch.get_default_dtype()
        x, y = (
            (side.to(dtype) if not side.is_floating_point() else side)
            if is_tensor(side)
            else torch.as_tensor(side, dtype=dtype, device=like.device)
            for side in (x, y)
        )
        return x - y
    return np.subtract(np.asarray(x), np.asarray(y), dtype=_common_float(x, y))


def _common_float(x: Any, y: Any) -> np.dtype[Any]:
    """float32 where both sides are, float64 otherwise (integers too)."""
    common = np.result_type(np.asarray(x), np.asarray(y))
    return common if common.kind == "f" else np.dtype(np.float64)


def as_scores(name: str, scores: Any) -> FloatArray:
    """The scores as a flat double-precision array; refuses what is empty or not finite."""
    if is_tensor(scores):
        scores = scores.detach().cpu().double().numpy()
    try:
        array = np.asarray(scores, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError):
        raise InputError(name, "must be numbers", scores) from None
    if array.size == 0:
        raise InputError(name, "must hold at least one score", "none", "A group with no scores has no distribution.")
    bad = ~np.isfinite(array)
    if bad.any():
        where = int(np.flatnonzero(bad)[0])
        raise InputError(
            name,
            "must be finite",
            float(array[where]),
            f"{int(bad.sum())} of {array.size} are not, first at {where}.",
        )
    return array


def as_weights(name: str, weights: Any, size: int) -> FloatArray:
    """Weights that sum to 1, one for each score; equal ones if none are given. They may be negative."""
    if weights is None:
        return np.full(size, 1.0 / size)
    array = as_scores(name, weights)
    if array.size != size:
        raise InputError(name, f"must have one weight for each of the {size} scores", array.size)
    total = float(array.sum())
    if not total > 0:
        raise InputError(name, "must have a positive sum", total, "They are divided by it.")
    return array / total
