"""Scores (ledger channel "predictions"): in every round clients share scores of some of their records, for fairness.

Where whole clients are protected, all records of one client are exchanged for as many others of the same groups and
sets. Whichever records were drawn, each of the m scores of a message may be another one, and moves by at most the
range; noise is drawn for each by itself: m releases, without any gain from sampling.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from accountant import calibration
from accountant.errors import InputError
from accountant.events import Adjacency, Composed, Event, Nothing, NotPrivate, Repeated, Unit
from accountant.spending import TRAIN, Spend
from privfair.channels.base import (
    EXACT,
    LARGEST,
    NO_MODEL,
    AgreedRun,
    Channel,
    Description,
    Phase,
    PriceList,
    ReplyCheck,
    equal,
    require,
)
from privfair.channels.workload import PrivateRun, Sampling, Workload
from privfair.clients.client import Client
from privfair.config import Config
from privfair.fairness.notions import Cells
from privfair.fairness.tracking import largest_remainder_quotas, random_quotas
from privfair.federated.messages import ScoreRelease, Scores, ScoresRequest
from privfair.federated.release_plan import ReleasePlan
from privfair.federated.round import Schedule
from privfair.mechanisms.entropy import Entropy, stream
from privfair.mechanisms.score_release import (
    ScoreNoise,
    fixed_scores,
    fixed_scores_event,
    poisson_scores,
    poisson_scores_event,
)
from privfair.util import FloatArray

PREDICTIONS = ScoresRequest.channel


class ScoresChannel(Channel[ScoresRequest, Scores]):
    """A simple random sample of each cell as it is, or a private message of fixed length."""

    name: ClassVar[str] = PREDICTIONS
    side: ClassVar[str] = TRAIN
    request, reply = ScoresRequest, Scores
    phase: ClassVar[Phase] = "algorithm"

    def planned(
        self, release_plan: ReleasePlan, schedule: Schedule, number: int | None, client: int
    ) -> ScoresRequest | None:
        """How many scores of each cell, at which rates and with which noise; cells with a quota of 0 are left out."""
        if number is None:
            return None
        sharing = release_plan.sharing
        if sharing is not None:
            quotas, rates = sharing.quotas[client], None if sharing.rates is None else sharing.rates[client]
            release = ScoreRelease(sharing.noise, rates)
        elif schedule.exact == "scores":
            quotas, release = _exact_quotas(release_plan, schedule, number)[client], None
        else:
            return None
        return ScoresRequest(number, NO_MODEL, quotas, release) if quotas.any() else None

    def respond(self, request: ScoresRequest, client: Client, entropy: Entropy) -> Scores:
        """So many scores of each cell."""
        release, membership = request.release, client.data.membership
        scores = client.scores(request.model, private=release is not None)
        shared: list[FloatArray] = []
        if release is None:
            rng = stream(client.seed, "scores", request.round, client.index)
            for cell, quota in enumerate(request.quotas):
                rows = np.flatnonzero(membership[:, cell])
                # fewer than requested only where the server knows noisy counts, and exact scores are reported anyway
                shared.append(scores[rng.choice(rows, size=min(int(quota), rows.size), replace=False)])
            return Scores(tuple(shared))
        for cell, quota in enumerate(request.quotas):
            mine = scores[membership[:, cell]]
            if not quota:
                shared.append(np.zeros(0))
            elif release.rates is None:
                shared.append(fixed_scores(mine, int(quota), release.noise, entropy))
            else:
                shared.append(poisson_scores(mine, int(quota), float(release.rates[cell]), release.noise, entropy))
        return Scores(tuple(shared))

    def spends(self, request: ScoresRequest, holder: PriceList) -> tuple[Spend, ...]:
        """One row for each cell that is shared; for a whole client one row of all scores."""
        release = request.release
        if release is None:
            return (holder.row(request, NotPrivate()),)
        if holder.unit is Unit.CLIENT:
            each, count = release.noise.event(holder.adjacency, holder.unit), int(request.quotas.sum())
            return (holder.row(request, each, count=count) if count else holder.row(request, Nothing()),)
        rows = []
        event: Event
        for cell in np.flatnonzero(request.quotas):
            if release.rates is not None:
                event = poisson_scores_event(float(release.rates[cell]), release.noise)
            else:
                event = fixed_scores_event(int(request.quotas[cell]), int(holder.cell_counts[cell]), release.noise)
            rows.append(holder.row(request, event, group=holder.labels[cell]))
        return tuple(rows) or (holder.row(request, Nothing()),)

    def worst_case(
        self, run: PrivateRun, sampling: Sampling | None = None, noise: Any = None, *, fixed: bool = True
    ) -> calibration.Channel | None:
        """The scores of all rounds, for a record of the cells with the highest rates; or for a whole client."""
        if sampling is None or sampling.quotas is None:
            return None
        event: Event
        if run.unit is Unit.CLIENT:
            if run.public_counts is None:
                return None
            scores = int(sampling.quotas.sum(axis=1).max())
            event = Repeated(noise.event(Adjacency.REPLACE_ONE, Unit.CLIENT), scores) if scores else Nothing()
        else:
            rate = run.config.prediction_rate if run.adjacency is Adjacency.ADD_OR_REMOVE else None
            events = worst_cells(run.cells, sampling, noise, rate, run.public_counts)
            event = events[0] if len(events) == 1 else Composed(tuple(events))
        return calibration.Channel(self.name, event, run.work.rounds + run.config.retries, fixed=fixed)

    def require_agreed(
        self, found: ScoresRequest, planned: ScoresRequest, release_plan: ReleasePlan, run: AgreedRun
    ) -> None:
        """The same numbers of scores, the same noise and the same rates."""
        one, other = found.release, planned.release
        same = (one is None) == (other is None)
        if one is not None and other is not None:
            same = one.noise == other.noise and equal(one.rates, other.rates)
        require(same and equal(found.quotas, planned.quotas), "The scores are not asked for as agreed.")

    def check_reply(self, request: ScoresRequest, reply: Scores, client: str, form: ReplyCheck) -> None:
        """So many finite numbers as were requested; exact scores may be fewer."""
        name = f"scores of client {client!r}"
        cells = [np.asarray(cell) for cell in reply.cells]
        wanted = [(int(quota),) for quota in request.quotas]
        found = [cell.shape for cell in cells]
        if request.release is None and len(found) == len(wanted) and all(len(shape) == 1 for shape in found):
            found = [max(few, asked) for few, asked in zip(found, wanted, strict=True)]
        if found != wanted:
            raise InputError(name, f"must be {request.quotas.tolist()} numbers for the cells", [c.shape for c in cells])
        if not all(np.issubdtype(cell.dtype, np.floating) and (np.abs(cell) <= LARGEST).all() for cell in cells):
            raise InputError(name, "must be finite numbers", "others")

    def describe(self, release_plan: ReleasePlan, config: Config, work: Workload) -> Description | None:
        """Noise on each score, and the rates at which records are sampled."""
        s, rounds = release_plan.sharing, config.federation.rounds
        if s is None:
            exact = work.shares_scores and work.embedding is None and config.privacy.predictions == "none"
            return EXACT if exact else None
        rates = s.quotas / np.maximum(release_plan.cells, 1) if s.rates is None else s.rates
        used = rates[s.quotas > 0]
        span = " to ".join(dict.fromkeys(f"{rate:.3g}" for rate in (used.min(), used.max()))) if used.size else "0"
        drawn = None if s.rates is None or not used.size else {"least": float(used.min()), "most": float(used.max())}
        facts = {
            "mechanism": s.noise.kind,
            "scale": s.noise.scale,
            "unit": "score",
            "grid_step": s.noise.step,
            "scores_per_round": int(s.quotas.sum()),
            "sampling_rate": drawn,
        }
        noise = f"{s.noise.kind}, {s.noise.scale:.3g} of a range of {s.noise.high - s.noise.low:g}"
        return Description(noise, f"{rounds} × {int(s.quotas.sum())} scores, rate {span}", facts)


@lru_cache(maxsize=4)
def _exact_quotas(release_plan: ReleasePlan, schedule: Schedule, number: int) -> NDArray[np.int64]:
    """(clients, cells): how many exact scores each client shares, together a simple random sample of every cell."""
    cells = np.maximum(release_plan.cells, 0)  # counts may be noisy, where only the scores are exact
    if schedule.quotas == "random":
        return random_quotas(cells, schedule.samples, stream(schedule.seed, "quotas", number))
    return largest_remainder_quotas(cells, schedule.samples)


# ---- What a round of shared scores costs the record that pays most for them.


Priced = tuple[float, Event]  # the rate at which records are sampled, and what a message costs


def worst_cells(
    cells: Cells, sampling: Sampling, noise: ScoreNoise, rate: float | None, public_counts: NDArray[np.int64] | None
) -> list[Event]:
    """For each attribute a record's most costly cell, or one of every set where sets overlap.

    `rate`: a configured one, under add-or-remove; `public_counts`: (clients, cells), where they are public.
    """
    events = []
    for attribute in range(cells.attributes):
        by_set = []
        for comparison in cells.comparisons:
            if comparison.attribute == attribute:
                costs = [_cell(cell, sampling, noise, rate, public_counts) for cell in comparison.cells]
                by_set += [max((c for c in costs if c[0] > 0), key=lambda c: c[0], default=(0.0, Nothing()))]
        if cells.notion.sets_of_a_record == 1:
            by_set = [max(by_set, key=lambda c: c[0])]
        events += [event for _, event in by_set]
    return events


def _cell(
    cell: int, sampling: Sampling, noise: ScoreNoise, rate: float | None, public_counts: NDArray[np.int64] | None
) -> Priced:
    """Of the client whose records of this cell are sampled at the highest rate.

    A configured rate is paid for whether or not the cell turns out large enough: the plan was fixed before that.
    """
    if rate is not None:
        return rate, poisson_scores_event(rate, noise)
    quotas = np.zeros(0) if sampling.quotas is None else sampling.quotas[:, cell]
    if not quotas.any():
        return 0.0, Nothing()
    if sampling.rates is not None:
        highest = float(sampling.rates[quotas > 0, cell].max())
        return highest, poisson_scores_event(highest, noise)
    counts = quotas if public_counts is None else public_counts[:, cell]
    rates = np.where(quotas > 0, quotas / np.maximum(counts, 1), 0.0)
    k = int(np.argmax(rates))
    return float(rates[k]), fixed_scores_event(int(quotas[k]), int(counts[k]), noise)
