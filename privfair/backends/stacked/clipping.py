"""Σ_i g_i·min(1, C/(‖g_i‖ + 1e-6)) over the records of each minibatch: the sum that DP-SGD takes, for many jobs.

g_i is the gradient of record i's loss in all parameters. In a linear layer it is the outer product of what arrives
(δ_i) and what was given (a_i), so ‖g_i‖² = Σ_layers ‖δ_i‖²(‖a_i‖² + 1), and no single record's gradient is ever written
down. Clipping and summing are in double precision, as Opacus does them here: see `clients.opacus_engine`.
"""

from __future__ import annotations

import torch
from torch.func import grad, vmap

from privfair.backends.stacked.networks import Functional, Network, Perceptron, outer_sums


def clipped_sums(
    network: Network,
    parameters: torch.Tensor,
    x: torch.Tensor,
    pull: torch.Tensor,
    given: list[torch.Tensor] | None,
    counted: torch.Tensor,
    bound: torch.Tensor,
) -> torch.Tensor:
    """(jobs, P); `pull` is the derivative of each record's loss in its output, `counted` which records there are."""
    if isinstance(network, Perceptron) and given is not None:
        return _of_perceptron(network, parameters, given, pull, counted, bound)
    if isinstance(network, Functional):
        return _of_module(network, parameters, x, pull, counted, bound)
    raise TypeError(f"no per-example gradients of {type(network).__name__}")


def _of_perceptron(
    network: Perceptron,
    parameters: torch.Tensor,
    given: list[torch.Tensor],
    pull: torch.Tensor,
    counted: torch.Tensor,
    bound: torch.Tensor,
) -> torch.Tensor:
    layers = network.layers(parameters)
    arriving = [pull.unsqueeze(2)]
    for level in range(len(layers) - 1, 0, -1):
        weight = layers[level][0]
        back = arriving[0] * weight if weight.shape[1] == 1 else torch.bmm(arriving[0], weight)
        arriving.insert(0, torch.ops.aten.threshold_backward(back, given[level], 0))
    inputs, deltas = [a.double() for a in given], [d.double() for d in arriving]
    squares = torch.zeros_like(pull, dtype=torch.float64)
    for a, delta in zip(inputs, deltas, strict=True):
        squares += delta.square().sum(dim=2) * a.square().sum(dim=2).add_(1.0)
    finite = torch.isfinite(squares)
    if not bool(finite.all()):  # a record whose gradient is not finite loses it
        inputs = [torch.where(finite.unsqueeze(2), a, 0.0) for a in inputs]
        deltas = [torch.where(finite.unsqueeze(2), d, 0.0) for d in deltas]
        squares = torch.where(finite, squares, 0.0)
    share = (_share(squares.sqrt_(), bound) * counted).unsqueeze(2)
    parts = []
    for a, delta in zip(inputs, deltas, strict=True):
        narrow = a.shape[2] < delta.shape[2]  # scale the smaller factor
        product = outer_sums(delta, a * share) if narrow else outer_sums(delta * share, a)
        parts += [product, torch.bmm(share.transpose(1, 2), delta).squeeze(1)]
    return torch.cat(parts, dim=1)


def _of_module(
    network: Functional,
    parameters: torch.Tensor,
    x: torch.Tensor,
    pull: torch.Tensor,
    counted: torch.Tensor,
    bound: torch.Tensor,
) -> torch.Tensor:
    """By functorch: the gradient of each record's output, times its pull."""
    slopes = vmap(vmap(grad(network.single), in_dims=(None, 0)))(parameters, x)
    gradients = slopes.double() * pull.double().unsqueeze(2)
    finite = torch.isfinite(gradients).all(dim=2, keepdim=True)
    gradients = torch.where(finite, gradients, 0.0)
    share = _share(torch.linalg.vector_norm(gradients, dim=2), bound) * counted
    return torch.bmm(share.unsqueeze(1), gradients).squeeze(1)


def _share(norms: torch.Tensor, bound: torch.Tensor) -> torch.Tensor:
    """Opacus' rule."""
    return (bound / norms.add_(1e-6)).clamp_(max=1.0)
