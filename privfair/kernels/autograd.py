"""The bridge to torch: functions of one variable and MMD² as differentiable operations.

Callers import this module only when they have a tensor, so that kernels work without loading torch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from privfair.kernels.base import Kernel, SmoothFunction, evaluate
from privfair.kernels.mmd import Pair


def tensor_apply(function: SmoothFunction, x: torch.Tensor, order: int) -> torch.Tensor:
    """`apply` for tensors."""
    floating = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    result: torch.Tensor = Elementwise.apply(floating, function, order)
    return result


class Elementwise(torch.autograd.Function):
    """f⁽ⁿ⁾(x) elementwise; its gradient is f⁽ⁿ⁺¹⁾(x). Works under autograd, double backward, torch.func and vmap."""

    @staticmethod
    def forward(x: torch.Tensor, function: SmoothFunction, order: int) -> torch.Tensor:
        """Evaluate on the CPU in double precision; the answer goes back to where x is."""
        array = x.detach().cpu().to(torch.float64).numpy()
        return torch.as_tensor(evaluate(function, array, order), dtype=x.dtype, device=x.device)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep what the gradient needs."""
        x, ctx.function, ctx.order = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Chain rule, itself differentiable."""
        (x,) = ctx.saved_tensors
        return gradient * Elementwise.apply(x, ctx.function, ctx.order + 1), None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        x: torch.Tensor,
        function: SmoothFunction,
        order: int,
    ) -> tuple[Any, int | None]:
        """Elementwise, so a batch of inputs is just a larger input."""
        return Elementwise.apply(x, function, order), in_dims[0]


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
