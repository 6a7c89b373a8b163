"""The bridge to torch: a function that knows its derivatives, as a differentiable operation."""

from __future__ import annotations

from typing import Any

import torch

from privfair.kernels.elementwise import SmoothFunction, evaluate


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
