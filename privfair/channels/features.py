"""Features (ledger channel "embeddings"): in every round clients share sums of features of all their scores.

Where whole clients are protected, all records of one client are exchanged for as many others of the same groups and
sets. The sum of a cell with n records moves by at most n times what one record can move it (pair the records). All
cells of a client are one vector, which moves by at most that times √Σ n².
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from accountant import calibration
from accountant.events import Adjacency, Composed, Event, Nothing, NotPrivate, Unit
from accountant.spending import TRAIN, Spend
from privfair.channels.base import EXACT, NO_MODEL, Channel, Description, Phase, PriceList, ReplyCheck, by_several
from privfair.channels.workload import PrivateRun, Sampling, Workload
from privfair.clients.client import Client
from privfair.config import Config
from privfair.federated.algorithms.mmd_fedavg import shares_features, takes_part
from privfair.federated.messages import Embeddings, EmbeddingsRequest, TrainRequest
from privfair.federated.release_plan import ReleasePlan
from privfair.federated.round import Schedule
from privfair.mechanisms.entropy import Entropy
from privfair.mechanisms.vector_release import VectorNoise
from privfair.util import FloatArray

EMBEDDINGS = EmbeddingsRequest.channel


class FeaturesChannel(Channel[EmbeddingsRequest, Embeddings]):
    """One vector for each cell, added by the server over all clients."""

    name: ClassVar[str] = EMBEDDINGS
    side: ClassVar[str] = TRAIN
    request, reply = EmbeddingsRequest, Embeddings
    phase: ClassVar[Phase] = "algorithm"

    def planned(
        self, release_plan: ReleasePlan, schedule: Schedule, number: int | None, client: int
    ) -> EmbeddingsRequest | None:
        """The sums of the cells that are large enough; with shared noise also from clients that add noise alone.

        None where they travel with the updates of the round before (`TrainRequest.features`).
        """
        within = number is not None and 0 < number <= schedule.rounds_with_features
        return None if within else self.asked(release_plan, schedule, number, client)

    def asked(
        self, release_plan: ReleasePlan, schedule: Schedule, number: int | None, client: int
    ) -> EmbeddingsRequest | None:
        """What a client is asked for this round, by itself or with its update of the round before."""
        planned = release_plan.embedding
        if number is None or (planned is None and schedule.exact != "features"):
            return None
        if not shares_features(release_plan)[client]:
            return None
        noise = None if planned is None else planned.noise
        return EmbeddingsRequest(number, NO_MODEL, takes_part(release_plan)[client], noise)

    def respond(self, request: EmbeddingsRequest, client: Client, entropy: Entropy) -> Embeddings:
        """The sums over all its records."""
        return self.summed(request, client, client.scores(request.model, private=request.release is not None), entropy)

    def summed(self, request: EmbeddingsRequest, client: Client, scores: FloatArray, entropy: Entropy) -> Embeddings:
        """The reply, from the scores of all its records, whoever computed them."""
        sent = client.features.message(
            scores,
            client.data.membership,
            request.cells,
            request.release,
            entropy,
            client=client.index,
            round_number=request.round,
        )
        return Embeddings(sent)

    def behind_update(self, request: TrainRequest, client: Client) -> FloatArray | None:
        """The vector that leaves behind the change of an update; None where the plan has none of this client."""
        asked = request.features
        if asked is None:
            return None
        scores = client.scores(request.model, private=asked.release is not None)
        entropy = client.entropy(EMBEDDINGS, asked.round)
        return client.features.vector(scores, client.data.membership, asked.cells, asked.release, entropy)

    def spends(self, request: EmbeddingsRequest, holder: PriceList) -> tuple[Spend, ...]:
        """One row for each cell: every record of it is in the sum. For a whole client one row of all cells."""
        if request.release is None:
            return (holder.row(request, NotPrivate()),)
        if holder.unit is Unit.CLIENT:
            times = vectors_moved(request.cells, holder.cell_counts)
            if not times:  # noise alone
                return (holder.row(request, Nothing()),)
            event = holder.in_shares(request.release, lambda noise: _client_event(noise, times))
            return (holder.row(request, event),)
        event = holder.in_shares(request.release, lambda noise: noise.event(holder.adjacency))
        if (
            holder.division and request.cells.any()
        ):  # all groups pay alike, and a row has one group: here it is the side
            cells = holder.cells
            return (holder.row(request, event, count=cells.attributes * cells.notion.sets_of_a_record),)
        rows = [holder.row(request, event, group=holder.labels[cell]) for cell in np.flatnonzero(request.cells)]
        return tuple(rows) or (holder.row(request, Nothing()),)

    def worst_case(
        self, run: PrivateRun, sampling: Sampling | None = None, noise: Any = None, *, fixed: bool = True
    ) -> calibration.Channel | None:
        """The sums of all rounds: a record is in the sum of each of its cells, and all cost the same."""
        event: Event
        if run.unit is Unit.CLIENT:
            if sampling is None or sampling.quotas is None or run.public_counts is None:
                return None
            rows = zip(sampling.quotas, run.public_counts, strict=True)
            event = _client_event(noise, max(vectors_moved(cells, counts) for cells, counts in rows))
        else:
            events = (noise.event(run.adjacency),) * (run.cells.attributes * run.cells.notion.sets_of_a_record)
            event = events[0] if len(events) == 1 else Composed(events)
        return calibration.Channel(self.name, event, run.work.rounds + run.config.retries, fixed=fixed)

    def check_reply(self, request: EmbeddingsRequest, reply: Embeddings, client: str, form: ReplyCheck) -> None:
        """One vector for each cell, encoded for the sum."""
        if form.features is not None:
            (adder, count), name = form.features, f"features of client {client!r}"
            adder.check(reply.contribution, form.cells * count, name)
            form.require_readable(adder, reply.contribution, 1.0, name, client, request.round)

    def describe(self, release_plan: ReleasePlan, config: Config, work: Workload) -> Description | None:
        """Noise on each sum, in units of the largest part of one record."""
        if release_plan.embedding is None:
            return EXACT if work.embedding is not None and config.privacy.predictions == "none" else None
        noise, vectors = release_plan.embedding.noise, int(release_plan.embedding.cells.sum())
        facts = {
            "mechanism": "gaussian",
            "scale": noise.multiplier,
            "unit": "the largest contribution of one record",
            "features": noise.count,
            "grid_step": 1 / noise.steps,
            "shares": noise.shares,
            "vectors_per_round": vectors,
            "sampling_rate": None,
        }
        return Description(
            f"gaussian, {noise.multiplier:.3g} × the part of one record{by_several(noise)}",
            f"{config.federation.rounds} × {vectors} sums of {noise.count} features, all records",
            facts,
        )


def vectors_moved(asked: NDArray[np.int64], counts: NDArray[np.int64]) -> float:
    """√Σ n² over the requested cells of one client, not rounded down."""
    squares = sum(int(n) ** 2 for n in np.asarray(counts)[np.asarray(asked) > 0])
    return math.nextafter(math.sqrt(squares), math.inf) if squares else 0.0


def _client_event(noise: VectorNoise, times: float) -> Event:
    """What one client's sums of one round cost it; `times`: what `vectors_moved` gives."""
    return noise.event(Adjacency.REPLACE_ONE, Unit.CLIENT, times) if times else Nothing()
