"""What DP-SGD does with one record, as an attacker sees it: the direction in which that record moves the sum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import gammaln

from privfair.arrays import FloatArray
from privfair.clients.client import Client
from privfair.clients.objectives import build_losses
from privfair.messages import Objective, PrivateWork, Update
from privfair.randomness import stream
from privfair.setting import Setting


def clipped_gradients(client: Client, values: FloatArray, objective: Objective, bound: float) -> FloatArray:
    """(records, parameters): each record's gradient under these parameters, by plain autograd, clipped to the bound."""
    model, data = client.model, client.data
    model.load(values)
    losses = build_losses(objective, data, model)
    rows = []
    for i in range(len(data.y)):
        at = torch.tensor([i])
        found = torch.autograd.grad(losses(at, model.outputs(data.x[at])).sum(), list(model.trainable))
        rows.append(torch.cat([g.reshape(-1) for g in found]).double().numpy())
    gradients = np.array(rows).reshape(len(rows), -1)
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    return np.asarray(gradients * np.minimum(1.0, bound / np.maximum(norms, 1e-12)))


def loud_parameters(client: Client, objective: Objective, bound: float) -> FloatArray:
    """Parameters under which the gradients of all the client's records are clipped with the most room to spare."""
    rng = stream(0, "audit", "parameters")
    start = client.model.parameters()
    tried = [np.zeros_like(start), start]
    tried += [
        (scale * rng.standard_normal(start.size)).astype(start.dtype) for scale in (0.01, 0.1, 1.0) for _ in range(8)
    ]
    loudness = [np.linalg.norm(clipped_gradients(client, v, objective, 1e9), axis=1).min() for v in tried]
    best = int(np.argmax(np.minimum(loudness, 20.0 * bound)))  # beyond that more is not better: the first stands
    return tried[best]


def beside(own: FloatArray, others: FloatArray) -> FloatArray:
    """The direction of `own` within what is orthogonal to all others."""
    _, sizes, rows = np.linalg.svd(others, full_matrices=False)
    span = rows[sizes > 1e-9 * max(1.0, float(sizes.max(initial=0.0)))]
    rest = own - span.T @ (span @ own)
    norm = float(np.linalg.norm(rest))
    return np.asarray(rest / norm if norm > 1e-12 else np.zeros_like(own))


def change(setting: Setting, reply: Update, number: int | None = None) -> FloatArray:
    """The weighted change of parameters in a client's update, opened; `number`: of its sum, by default the next one."""
    total = setting.server.adder.add([reply.contribution], names=["client 0"])
    opened = setting.replica.aggregator.open(total, number=number or setting.replica.round + 1)
    return np.asarray(opened, dtype=np.float64)


@dataclass(frozen=True)
class Steps:
    """The sum of a round's steps along a record's direction, in units of its clipped gradient: k + noise.

    The record is in k of n steps, k ~ Binomial(n, q); the noise has variance n·z².
    """

    steps: int
    rate: float
    multiplier: float
    both_ways: bool  # replaced by a record of the opposite gradient, not left out

    @staticmethod
    def of(work: PrivateWork, replaces: bool, share: float = 1.0) -> Steps:
        """Of planned work; `share`: how much of its bounded gradient can be seen along the direction."""
        return Steps(work.steps, work.sampling_rate, work.noise_multiplier / max(share, 1e-9), replaces)

    def log_ratio(self, seen: float) -> float:
        """log P(seen | present) − log P(seen | absent)."""
        if not self.both_ways:
            return self._log(seen)
        return self._log(seen) - self._log(-seen)

    def _log(self, seen: float) -> float:
        """log Σ_k P(k) exp((2·seen·k − k²)/2nz²): against no record at all."""
        k = np.arange(self.steps + 1)
        if self.rate == 1.0:
            k, weights = k[-1:], np.zeros(1)
        else:
            choose = gammaln(self.steps + 1) - gammaln(k + 1) - gammaln(self.steps - k + 1)
            weights = choose + k * np.log(self.rate) + (self.steps - k) * np.log1p(-self.rate)
        logs = weights + (2.0 * seen * k - k * k) / (2.0 * self.steps * self.multiplier**2)
        top = float(logs.max())
        return top + float(np.log(np.sum(np.exp(logs - top))))
