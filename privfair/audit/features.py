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
    Seen,
    SharedWorlds,
    Subject,
    WorldsAttack,
    asked,
    cells_of,
    claimed,
    in_the_open,
    only_trained,
    planned,
    worlds,
)
from privfair.channels.base import respond
from privfair.channels.features import EMBEDDINGS
from privfair.clients.client import Client, Embedder, all_scores
from privfair.datasets.records import ClientData
from privfair.federated.messages import Embeddings, Parameters
from privfair.mechanisms.entropy import stream
from privfair.util import FloatArray

FAR = 50.0  # a feature large enough for scores at the ends of their range
NEAR = 0.99  # the second model's vector is at least so long, over the longest
POOLED = "server and client"


class EmbeddingsAttack(WorldsAttack):
    """A record whose vector ψ is as long as the features allow, or none; replaced: two with vectors furthest apart.

    The server chooses the models, two of them in turn, so that the record has such a score. Nobody else is in the sums.
    All cells are requested: the noise of empty ones must be independent of the record's. If every client adds all of
    the noise, the attacker opens the client's message. If noise comes in shares there are two adversaries (see
    `SharedWorlds`). With masks: the server with as many holders as the plan allows for, and with all others. Without: a
    client that opens the sum of the smallest cohort and subtracts its own part; and the server with a client, who open
    the message itself. The second is held against the ε of one share, and of the plan with one share.
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
        """The clients with and without the record, and the requests of all rounds."""
        sharing = subject.release_plan.embedding
        if sharing is None or subject.target is None:
            raise ValueError("no sums of features are shared")
        self._subject, self._noise = subject, sharing.noise
        end = np.zeros((1, FEATURES))
        end[0, 0] = FAR
        self._record, opposite = subject.records(end), subject.records(-end)
        lacking = opposite if subject.replaces else self._record.take([])
        self._worlds = worlds(subject, self.channel, only_trained(self._record), only_trained(lacking))
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
            self._open(_vectors(c, exact), request.round) for c in (self._worlds.present, self._worlds.absent)
        )
        return np.asarray((there - not_there) / np.linalg.norm(there - not_there))

    @property
    def views(self) -> Mapping[str, tuple[int, ...]]:
        """Whoever opens single messages; with noise in shares two adversaries."""
        return self._views("white-box", 5 + len(self._rest))

    def claim(self) -> Claimed:
        """Of all rounds; and that of one share. Only rows of masked sums have both."""
        whole = self._worlds.claim(self._requests, self._cells)
        if self._noise.shares == 1 or self._subject.masks is not None:
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
        rounds = [self._messages(present, request) for request in self._requests]
        rows = []
        for messages in zip(*rounds, strict=True):  # of one client
            length, beside = sum(one.length for one in messages), messages[0].beside
            views = zip(*(one.vectors for one in messages), strict=True)
            rows.append([number for vectors in views for number in self._numbers(vectors, length, beside)])
        return np.array(rows, dtype=np.float64)

    def _messages(self, present: Coins, request: Any) -> list[Seen]:
        return self._seen(present, request, Embeddings, lambda reply: self._open(reply.contribution, request.round))

    def _open(self, message: bytes, round_number: int) -> FloatArray:
        if isinstance(self._worlds, SharedWorlds) and self._subject.masks is not None:
            return in_the_open(message)
        return embedder_of(self._worlds.present).total(message, round_number)

    def _numbers(self, seen: Sequence[FloatArray], length: int, other: FloatArray | None) -> list[float]:
        along = [float(one @ self._directions[number % 2]) for number, one in enumerate(seen)]
        differ = 0.0
        if len(seen) > 1:
            differ = float((seen[0] - seen[1]) @ (self._directions[0] - self._directions[1]))
        blocks = seen[0].reshape(len(self._worlds.simulation.cells), -1)
        direction = self._directions[0].reshape(blocks.shape)[self._cells[0]]
        against = [float((blocks[self._cells[0]] - blocks[c]) @ direction) for c in self._rest]
        beside = 0.0 if other is None else float(other @ self._directions[0])
        return [sum(along), along[0], float(length), differ, along[0] - beside, *against]


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
