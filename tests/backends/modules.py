"""Modules of a user's own, for models named "tests.backends.modules:…"."""

from __future__ import annotations

import torch
from torch import nn


class Gated(nn.Module):
    """Not a plain chain of layers; one of its parameters is not trained."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(features, 3), nn.Linear(features, 3)
        self.out = nn.Linear(3, 1, bias=False)
        self.right.bias.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.out(torch.tanh(self.left(x)) * torch.sigmoid(self.right(x)))
        return result


def tanh(features: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, 4), nn.Tanh(), nn.LayerNorm(4), nn.Linear(4, 1))


def dropout(features: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 1))


class Branching(nn.Module):
    """Looks at its input, which cannot be stacked."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.linear(x)
        return result if float(x.sum()) > -1e9 else -result
