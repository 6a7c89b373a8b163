"""MMD² as a differentiable operation in torch."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from privfair.kernels.base import Kernel
from privfair.kernels.mmd import Pair


class _Mmd2(torch.autograd.Function):
    """The value, and from the same sorted sums its gradient: no n×n matrix is ever made."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor, pair: Pair, biased: bool) -> torch.Tensor:
        """MMD² of the pair; keeps the pair for the gradient."""
        ctx.pair, ctx.biased = pair, biased
        ctx.save_for_backward(x, y)
        return x.new_tensor(pair.mmd2(biased))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        """2w·C′ at each score."""
        x, y = ctx.saved_tensors
        slope_x, slope_y = ctx.pair.slopes(ctx.biased)
        return (
            gradient * torch.as_tensor(slope_x, dtype=x.dtype, device=x.device).reshape(x.shape),
            gradient * torch.as_tensor(slope_y, dtype=y.dtype, device=y.device).reshape(y.shape),
            None,
            None,
        )


def tensor_mmd2(x: Any, y: Any, kernel: Kernel, biased: bool, weights0: Any, weights1: Any) -> torch.Tensor:
    """`mmd2` for tensors."""
    like = x if isinstance(x, torch.Tensor) else y
    dtype = like.dtype if like.is_floating_point() else torch.get_default_dtype()
    x, y = (torch.as_tensor(side, dtype=dtype, device=like.device) for side in (x, y))
    result: torch.Tensor = _Mmd2.apply(x, y, Pair(x, y, kernel, weights0, weights1), biased)
    return result
