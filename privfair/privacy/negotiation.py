"""The terms of a private run: who takes part, at which rates, with how much noise; all from released counts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from accountant.errors import InputError, Refused
from privfair.channels.workload import Sampling
from privfair.config import MOST_LOCAL_STEPS, MOST_RECORDS
from privfair.fairness.tracking import largest_remainder_quotas
from privfair.federated.messages import Counts
from privfair.federated.release_plan import ReleasePlan
from privfair.mechanisms.count_release import CountNoise
from privfair.privacy.planner import Noise, Planner
from privfair.util import FloatArray


class EndedAfterCounts(Refused):
    """A run whose released counts do not let it go on: no client is large enough, or no noise meets the target."""


@dataclass(frozen=True)
class PrivateCounts:
    """Clients tell noisy counts (or public ones), and a public rule makes terms of them."""

    planner: Planner
    releases_of_counts: Callable[[], int] = lambda: 1  # more than one after a crash that lost them

    @property
    def count_noise(self) -> CountNoise | None:
        """That of the plan."""
        return self.planner.count_noise

    @property
    def admits_later(self) -> bool:
        """Only where neither rates nor noise follow from counts."""
        return self.planner.one_phase and self.planner.config.counts != "public"

    def settle(self, counts: list[Counts], noise: Noise | None = None) -> ReleasePlan:
        """Leave out who is too small, plan the rates, calibrate the noise, or check that of others."""
        config = self.planner.config
        planner = replace(self.planner, count_releases=self.releases_of_counts())
        reported = np.array([c.records for c in counts])
        cells = np.stack([c.cells for c in counts])
        least = self._least()
        takes_part = reported >= least
        if not takes_part.any():
            remedy = (
                "With so few records there is nothing to learn privately. The rule is the larger of privacy.min_count "
                "and three times the noise of counts (two for gaussian); more ε or a larger count_share lowers it."
            )
            rule = f"must have a client with a released count of at least {least}"
            raise InputError("data", rule, int(reported.max()), remedy)
        records = np.where(takes_part, reported, 0)
        cells = np.where(takes_part[:, None], cells, 0)
        planner = replace(planner, released_delta=self._delta(int(records.sum())))
        if config.counts == "public":
            planner = replace(planner, public_counts=cells)
        return planner.release_plan(self._sampling(records, cells, least), records, cells, least, noise)

    def ended(self, error: InputError) -> Exception:
        """The error of a run that cannot go on with the counts that it got; with what they cost, where they did."""
        if self.planner.count_noise is None:
            return error
        price = replace(self.planner, count_releases=self.releases_of_counts()).price_of_counts()
        return EndedAfterCounts(
            f"The run ended after its counts, and nothing else was released. They cost every client at most "
            f"ε = {price:.3g}, which is in the ledger. {error}"
        )

    def _delta(self, records: int) -> float | None:
        """δ′ = 1/(10·n) for a released number of records n that the configured δ is not below 1/n for; else None.

        A declared number of records was held against δ before anything was released, and δ stays what it is.
        """
        c = self.planner.config
        if c.records is not None or c.delta * records < 1:
            return None
        return 1 / (10 * min(records, MOST_RECORDS))

    def _least(self) -> int:
        """The smallest released count that is taken for more than noise: an empty cell passes once in about 40."""
        noise = self.planner.count_noise
        if noise is None:
            return 1
        tail = 3.0 if noise.kind == "laplace" else 2.0  # of exp(-t)/2, of the normal law
        return max(self.planner.config.min_count, math.ceil(tail * noise.scale))

    def _sampling(self, records: NDArray[np.int64], cells: NDArray[np.int64], least: int) -> Sampling:
        """Rates and steps: configured, or so that minibatches and messages have the configured size in the mean.

        One rate and one number of steps for all clients: then all pay the same for updates, and a client's minibatches
        are in proportion to its records.
        """
        config, work = self.planner.config, self.planner.work
        rate = config.sampling_rate
        if rate is None:
            rate = min(1.0, float(work.batch_size * np.count_nonzero(records) / records.sum()))
            if config.local_steps is None:  # larger minibatches, where there would be too many
                rate = max(rate, work.epochs / MOST_LOCAL_STEPS)
        steps = self.planner.steps(rate)
        if not work.shares_scores or config.predictions == "none":
            return Sampling(rate, steps, None, None)
        if work.embedding is not None:
            return Sampling(rate, steps, (cells >= least).astype(np.int64), None)
        received = np.where(cells >= least, cells, 0)
        one_rate = self._one_rate(received)
        quotas = self._quotas(received, one_rate)
        return Sampling(rate, steps, quotas, self._rates(quotas, cells, one_rate))

    def _one_rate(self, counts: NDArray[np.int64]) -> float | None:
        """The rate of all groups, if they have one: configured, or so that as many scores are shared in all."""
        config = self.planner.config
        if config.prediction_rate is not None or not config.equalise_groups or not counts.any():
            return config.prediction_rate
        groups = int(counts.any(axis=0).sum())
        return min(1.0, groups * self.planner.work.samples / float(counts.sum()))

    def _quotas(self, counts: NDArray[np.int64], rate: float | None) -> NDArray[np.int64]:
        """How many scores a client's message has for each cell: at least one where the cell takes part."""
        config = self.planner.config
        if rate is not None and config.equalise_groups and config.counts == "public":
            few: NDArray[np.int64] = np.floor(rate * counts).astype(np.int64)
            return few  # at least one would be a higher rate where there are few records
        if rate is not None:
            planned = np.rint(rate * counts).astype(np.int64)
        else:
            planned = largest_remainder_quotas(counts, self.planner.work.samples)
        return np.where(counts > 0, np.maximum(planned, 1), 0)

    def _rates(self, quotas: NDArray[np.int64], counts: NDArray[np.int64], one_rate: float | None) -> FloatArray | None:
        """How likely a record is to be in the message; None with public counts, where exactly `quotas` are drawn."""
        if self.planner.config.counts == "public":
            return None
        if one_rate is not None:
            return np.where(quotas > 0, one_rate, 0.0)
        return np.minimum(1.0, quotas / np.maximum(counts, 1))
