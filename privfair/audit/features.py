"""Embeddings: is a record in the sum of features that a client shares of a group?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from privfair.audit.attack import (
    FEATURES,
    MOST_OTHERS,
    Claimed,
    Coins,
    Subject,
    Worlds,
    WorldsAttack,
    asked,
    cells_of,
    claimed,
    only_trained,
    planned,
)
from privfair.channels.base import respond
from privfair.channels.features import EMBEDDINGS
from privfair.clients.client import Client
from privfair.clients.embedder import Embedder
from privfair.clients.objectives import all_scores
from privfair.datasets.records import ClientData
from privfair.federated.algorithms.mmd_fedavg import EmbeddingTracking
from privfair.federated.messages import Embeddings, Parameters
from privfair.util import FloatArray, stream

FAR = 50.0  # a feature large enough for scores at the ends of their range
NEAR = 0.99  # the second model's vector is at least so long, over the longest
OPENED, CLIENT, POOLED = "white-box", "client", "server and client"


class EmbeddingsAttack(WorldsAttack):
    """A record whose vector ψ is as long as the features allow, or none; replaced: two with vectors furthest apart.

    The server chooses the models, two of them in turn, so that the record has such a score. Nobody else is in the sums.
    All cells are requested: the noise of empty ones must be independent of the record's. If every client adds all of
    the noise, the attacker opens the client's message. If noise is distributed there are two adversaries: a client that
    opens the sum of the smallest cohort and subtracts its own part; and the server with a client, who open the message
    itself, against the ε of one share, and of the plan with one share.
    """

    channel: ClassVar[str] = EMBEDDINGS
    about: ClassVar[str] = "the noisy sums of features of every client in all rounds, with and without one record"

    @staticmethod
    def why_not(subject: Subject) -> str | None:
        """Sums without noise have no ε, and most runs share none."""
        if subject.config.privacy.client_level:
            return "not attacked where whole clients are protected"
        if subject.config.fairness.tracker != "embedding":
            return "not shared: scores are (predictions)"
        if subject.release_plan.embedding is None:
            return "not shared, or shared without noise: no ε is claimed"
        return None if subject.target else "no group is large enough to be shared"

    def __init__(self, subject: Subject) -> None:
        """Both clients, those that help to hide them, and the requests of all rounds."""
        sharing = subject.release_plan.embedding
        if sharing is None or subject.target is None:
            raise ValueError("no sums of features are shared")
        self._subject, self._noise = subject, sharing.noise
        end = np.zeros((1, FEATURES))
        end[0, 0] = FAR
        self._record, opposite = subject.records(end), subject.records(-end)
        lacking = opposite if subject.replaces else self._record.take([])
        both = only_trained(self._record), only_trained(lacking)
        self._worlds = Worlds(_alone(subject), self.channel, *both, helpers=subject.cohort - 1)
        self._helpers = self._worlds.helpers
        self._cells = cells_of(self._worlds.present)
        count = len(self._worlds.simulation.cells)
        self._rest = [c for c in range(count) if c not in self._cells][:MOST_OTHERS]
        cells = np.ones(count, dtype=np.int64)
        models = [Parameters(values) for values in loudest_models(self._worlds.present, self._worlds.absent)]
        request = planned(subject, self._worlds.simulation, EMBEDDINGS, client=subject.target[0])
        self._requests = [
            replace(request, round=number, model=models[number % 2], cells=cells) for number in range(subject.rounds)
        ]
        self._directions = [self._difference(request) for request in self._requests[:2]]

    def _difference(self, request: Any) -> FloatArray:
        """What the record changes in the sums, of length 1: along it the likelihood ratio grows."""
        exact = replace(request, release=None)
        there, not_there = (
            self._open(_vectors(c, exact), request) for c in (self._worlds.present, self._worlds.absent)
        )
        return np.asarray((there - not_there) / np.linalg.norm(there - not_there))

    @property
    def views(self) -> Mapping[str, tuple[int, ...]]:
        """Whoever opens single messages; with distributed noise a client, and the server with a client."""
        each = 5 + len(self._rest)
        mine, more = tuple(range(each)), tuple(range(each, 2 * each))
        return {CLIENT: mine, POOLED: more} if self._helpers else {OPENED: mine}

    def claim(self) -> Claimed:
        """Of all rounds; for server and client together, that of one share."""
        whole = self._worlds.claim(self._requests, self._cells)
        if not self._helpers:
            return whole
        holder = ClientData("attacked", self._record, self._record.take([]))
        simulation = self._subject.simulation([holder], f"{self.channel}-alone")
        try:
            asked(simulation, [replace(request, release=self._noise.alone) for request in self._requests])
            return replace(whole, others={POOLED: claimed(simulation, self._cells)})
        finally:
            simulation.close()

    def trial(self, present: Coins) -> FloatArray:
        """For each adversary: all messages along the record's direction; the first; their length; how two differ.

        Two of different rounds, of different clients, and of different cells.
        """
        rounds = [self._worlds.ask(present, request, Embeddings) for request in self._requests]
        other = rounds[0][1]
        beside = np.zeros_like(self._directions[0])
        if other is not None:
            beside = self._open(other.contribution, self._requests[0])
        rows = []
        for k in range(len(present)):
            own = [replies[k].contribution for replies, _ in rounds]
            row = self._numbers(self._opened(own), sum(map(len, own)), beside)
            if self._helpers:
                sums = [self._sum(one, request) for one, request in zip(own, self._requests, strict=True)]
                opened = self._opened([total for total, _ in sums])
                seen = [total - known for total, (_, known) in zip(opened, sums, strict=True)]
                row = [*self._numbers(seen, sum(len(total) for total, _ in sums), beside), *row]
            rows.append(row)
        return np.array(rows, dtype=np.float64)

    def _sum(self, own: bytes, request: Any) -> tuple[bytes, FloatArray]:
        """The sum of the smallest cohort, and the part in it of the client who opens it.

        A public rule leaves the others out of the cells, so they add only their shares of the noise.
        """
        algorithm = self._worlds.simulation.server.algorithm
        if not isinstance(algorithm, EmbeddingTracking) or algorithm.adder is None:
            raise TypeError(type(algorithm).__name__)
        silent = replace(request, cells=np.zeros_like(request.cells))
        shares = [_vectors(client, silent) for client in self._helpers]
        return algorithm.adder.add([own, *shares]), self._open(shares[-1], request)

    def _opened(self, messages: Sequence[bytes]) -> list[FloatArray]:
        """What is in one message of each round."""
        return [self._open(message, request) for message, request in zip(messages, self._requests, strict=True)]

    def _open(self, message: bytes, request: Any) -> FloatArray:
        return embedder_of(self._worlds.present).total(message, request.round)

    def _numbers(self, seen: Sequence[FloatArray], length: int, beside: FloatArray) -> list[float]:
        along = [float(one @ self._directions[number % 2]) for number, one in enumerate(seen)]
        differ = 0.0
        if len(seen) > 1:
            differ = float((seen[0] - seen[1]) @ (self._directions[0] - self._directions[1]))
        blocks = seen[0].reshape(len(self._worlds.simulation.cells), -1)
        direction = self._directions[0].reshape(blocks.shape)[self._cells[0]]
        against = [float((blocks[self._cells[0]] - blocks[c]) @ direction) for c in self._rest]
        return [sum(along), along[0], float(length), differ, along[0] - float(beside @ self._directions[0]), *against]


def _alone(subject: Subject) -> Subject:
    """With one client if noise is distributed, because every trial asks the whole cohort."""
    return subject if subject.cohort == 1 else replace(subject, clients=subject.clients[:1])


def embedder_of(client: Client) -> Embedder:
    """What makes a client's vectors."""
    if client.embedder is None:
        raise ValueError("no features are shared")
    return client.embedder


def loudest_models(present: Client, absent: Client) -> list[FloatArray]:
    """Two parameter vectors under which the record changes the sum most: the best, and one that changes it otherwise.

    ψ of the record, less ψ of the one in its place. Parameters on lines through 0 give scores all over their range.
    """
    rng = stream(0, "audit", "features")
    start = present.model.parameters()
    tried, moved = [], []
    for direction in rng.standard_normal((16, start.size)):
        for scale in np.geomspace(1e-3, 10.0, 40):
            tried.append((scale * direction).astype(start.dtype))
            moved.append(_moved(present, absent, tried[-1]))
    vectors = np.array(moved)
    lengths = np.linalg.norm(vectors, axis=1)
    best = int(np.argmax(lengths))
    apart = np.linalg.norm(vectors - vectors[best], axis=1)
    other = int(np.argmax(np.where(lengths >= NEAR * lengths[best], apart, -1.0)))
    return [tried[best], tried[other]]


def _moved(present: Client, absent: Client, values: FloatArray) -> FloatArray:
    """How far the record moves the sum of a cell under these parameters."""
    unit = embedder_of(present).plan.unit
    sums = []
    for client in (present, absent):
        client.model.load(values)
        sums.append(unit.values(all_scores(client.model, client.data)).sum(axis=0))
    return np.asarray(sums[0] - sums[1])


def _vectors(client: Client, request: Any) -> bytes:
    reply = respond(client, request)
    if not isinstance(reply, Embeddings):
        raise TypeError(type(reply).__name__)
    return reply.contribution
