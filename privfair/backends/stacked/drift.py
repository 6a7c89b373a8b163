"""The tracked penalty with drift correction, for many jobs: every step looks at all records of every client."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from privfair.backends.stacked.rules import Step, TrackedRule, shared_samples
from privfair.backends.stacked.slopes import EnergySums
from privfair.clients.objectives import TrainingData
from privfair.fairness.tracking import DriftingPenalty, TrackedPenalty

AllScores = Callable[[torch.Tensor], torch.Tensor]  # (jobs, P) -> (jobs, most records): scores of all their records


def own_shares(penalty: TrackedPenalty, data: TrainingData, *, shared_drift: bool) -> list[float]:
    """For each cell the weight of one of the client's records in the corrected mean: w_a/n_k^a."""
    shares = []
    for cell, count in enumerate(data.membership.sum(axis=0, dtype=np.int64)):
        whole = 1.0 if shared_drift else count / max(float(penalty.shared.counts[cell]), count, 1)
        shares.append(float(whole / count) if count else 0.0)
    return shares


class DriftEnergy:
    """C_{k,i} of `DriftingPenalty` with the energy kernel."""

    def __init__(
        self,
        penalties: Sequence[TrackedPenalty],
        data: Sequence[TrainingData],
        shared_drift: Sequence[bool],
        offsets: Sequence[int],
        scores: AllScores,
        start: torch.Tensor,
    ) -> None:
        """`start`: the parameters of the round."""
        self._scores = scores
        self._offsets = torch.tensor(offsets)[:, None]
        self._coefficients = TrackedRule(penalties, start.dtype, energy=True).coefficients
        at_start = scores(start)
        self._weights = _own_weights(penalties, data, shared_drift, at_start)
        self._fixed = [
            EnergySums(torch.cat([y, at_start], dim=1), torch.cat([w, -own], dim=1))
            for (y, w), own in zip(shared_samples(penalties, start.dtype), self._weights, strict=True)
        ]

    def slopes(self, step: Step) -> torch.Tensor:
        """See `Rule`; own scores come from one and the same pass, so that a record meets itself."""
        jobs = len(step.scores)
        now = self._scores(step.parameters)
        z = now.gather(1, step.index - self._offsets[:jobs])
        total = torch.zeros_like(z)
        for coefficients, fixed, own in zip(self._coefficients, self._fixed, self._weights, strict=True):
            moving = EnergySums(now, own[:jobs])
            total.addcmul_(coefficients.of(step.member), fixed.at(z).add_(moving.at(z)))
        return total


def _own_weights(
    penalties: Sequence[TrackedPenalty], data: Sequence[TrainingData], shared_drift: Sequence[bool], like: torch.Tensor
) -> list[torch.Tensor]:
    """For each embedding (jobs, most records): factor·w/n of each record's cell; 0 beyond a client's records."""
    result = []
    for e in range(max(len(p.factors) for p in penalties)):
        weights = np.zeros(like.shape)
        for job, (penalty, own, alike) in enumerate(zip(penalties, data, shared_drift, strict=True)):
            shares = own_shares(penalty, own, shared_drift=alike)
            for cell, factor in (penalty.factors[e] if e < len(penalty.factors) else {}).items():
                weights[job, : len(own.y)] += factor * shares[cell] * own.membership[:, cell]
        result.append(torch.from_numpy(weights).to(like.dtype))
    return result


class DriftOneByOne:
    """The same for any kernel: each job's slopes by the code of a client alone."""

    def __init__(
        self,
        penalties: Sequence[TrackedPenalty],
        data: Sequence[TrainingData],
        shared_drift: Sequence[bool],
        offsets: Sequence[int],
        scores: AllScores,
        start: torch.Tensor,
    ) -> None:
        """As `DriftEnergy`."""
        self._scores, self._offsets = scores, offsets
        self._coefficients = [p.coefficients(d.membership) for p, d in zip(penalties, data, strict=True)]
        at_start = scores(start).double().numpy()
        self._counts = [len(d.y) for d in data]
        self._penalties = [
            DriftingPenalty(p, d.membership, row[: len(d.y)], shared_drift=alike)
            for p, d, row, alike in zip(penalties, data, at_start, shared_drift, strict=True)
        ]

    def slopes(self, step: Step) -> torch.Tensor:
        """See `Rule`."""
        total = torch.zeros_like(step.scores)
        now = self._scores(step.parameters).double().numpy()
        index = step.index.numpy()
        for job, size in enumerate(step.sizes.tolist()):
            own, positions = now[job, : self._counts[job]], index[job, :size] - self._offsets[job]
            self._penalties[job].refresh(own)
            slopes = self._penalties[job].derivative(own[positions], self._coefficients[job][:, positions])
            total[job, :size] = torch.from_numpy(slopes).to(total.dtype)
        return total
