"""Embeddings: is a record in the sum of features that a client shares of a group?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from privfair.algorithms.embedding import EmbeddingTracking
from privfair.arrays import FloatArray
from privfair.clients.client import Client
from privfair.clients.embedder import Embedder
from privfair.clients.objectives import all_scores
from privfair.empirical.attack import Claimed, asked, claimed
from privfair.empirical.subject import FEATURES, Subject, all_clients, twin
from privfair.messages import Embeddings, EmbeddingsRequest, Parameters
from privfair.privacy.pricing import EMBEDDINGS
from privfair.randomness import stream

FAR = 50.0  # a feature large enough for scores at the ends of their range
NEAR = 0.99  # the second model's vector is at least so long, over the longest
OPENED, CLIENT, POOLED = "white-box", "client", "server and client"
_NUMBERS = 4  # of a trial, for each adversary


class EmbeddingsAttack:
    """A record whose vector ψ is as long as the features allow, or none; replaced: two with vectors furthest apart.

    The server chooses the models: those under which the record has such a score, two of them in turn. Nobody else is in
    the sums. Where every client adds all of the noise, the attacker opens the client's message. Where each adds a share
    there are two: a client that opens the sum of the smallest cohort and takes off its own part; and the server with a
    client, who open the message itself, against the ε of one share, and of the plan with one share.
    """

    channel: ClassVar[str] = EMBEDDINGS
    about: ClassVar[str] = "the noisy sums of features of one client in all rounds, with and without one record"

    @staticmethod
    def why_not(subject: Subject) -> str | None:
        """Sums without noise have no ε, and most runs share none."""
        if subject.config.fairness.tracker != "embedding":
            return "not shared: scores are (predictions)"
        if subject.terms.embedding is None:
            return "not shared, or shared without noise: no ε is claimed"
        return None if subject.target else "no group is large enough to be heard"

    def __init__(self, subject: Subject) -> None:
        """Both clients, those that help to hide them, and the requests of all rounds."""
        planned = subject.terms.embedding
        if planned is None:
            raise ValueError("no sums of features are shared")
        self._subject, self._noise = subject, planned.noise
        end = np.zeros((1, FEATURES))
        end[0, 0] = FAR
        self._record, opposite = subject.records(end), subject.records(-end)
        self._setting = subject.setting(self._record, self.channel, others=subject.cohort - 1)
        present, *self._others = all_clients(self._setting)
        absent = opposite if subject.replaces else self._record.take([])
        self._clients = {True: present, False: twin(self._setting, absent)}
        self._cells = [int(c) for c in np.flatnonzero(present.data.membership[0])]
        cells = np.zeros(len(self._setting.cells), dtype=np.int64)
        cells[self._cells] = 1
        models = [Parameters(values) for values in loudest_models(present, self._clients[False])]
        self._requests = [
            EmbeddingsRequest(number, models[number % 2], cells, self._noise) for number in range(subject.rounds)
        ]
        self._directions = [self._difference(request) for request in self._requests[:2]]

    def _difference(self, request: EmbeddingsRequest) -> FloatArray:
        """What the record changes in the sums, of length 1: along it the likelihood ratio grows."""
        exact = replace(request, release=None)
        there, not_there = (self._open(_told(self._clients[p], exact), request) for p in (True, False))
        return np.asarray((there - not_there) / np.linalg.norm(there - not_there))

    @property
    def views(self) -> Mapping[str, tuple[int, ...]]:
        """Who opens single messages; with noise in shares a client, and the server with a client."""
        mine, more = tuple(range(_NUMBERS)), tuple(range(_NUMBERS, 2 * _NUMBERS))
        return {CLIENT: mine, POOLED: more} if self._others else {OPENED: mine}

    def claim(self) -> Claimed:
        """Of all rounds; for server and client together, that of one share."""
        asked(self._setting, self._requests)
        whole = claimed(self._setting, self._cells)
        if not self._others:
            return whole
        setting = self._subject.setting(self._record, f"{self.channel}-alone")
        try:
            asked(setting, [replace(request, release=self._noise.alone) for request in self._requests])
            return replace(whole, others={POOLED: claimed(setting, self._cells)})
        finally:
            if setting.private is not None:
                setting.private.close()

    def trial(self, present: bool) -> tuple[float, ...]:
        """For each adversary: all messages along the record's direction; the first; their length; how two differ."""
        seen: list[list[FloatArray]] = [[], []]
        lengths = [0, 0]
        for request in self._requests:
            own = _told(self._clients[present], request)
            if self._others:
                total, known = self._sum(own, request)
                seen[0].append(self._open(total, request) - known)
                lengths[0] += len(total)
            seen[-1].append(self._open(own, request))
            lengths[-1] += len(own)
        if self._others:
            return *self._numbers(seen[0], lengths[0]), *self._numbers(seen[1], lengths[1])
        return self._numbers(seen[1], lengths[1])

    def _sum(self, own: bytes, request: EmbeddingsRequest) -> tuple[bytes, FloatArray]:
        """The sum of the smallest cohort, and the part in it of the client who opens it.

        The others were left out of the cells by public rule, and add nothing but their shares of the noise.
        """
        algorithm = self._setting.server.algorithm
        if not isinstance(algorithm, EmbeddingTracking) or algorithm.adder is None:
            raise TypeError(type(algorithm).__name__)
        silent = replace(request, cells=np.zeros_like(request.cells))
        shares = [_told(client, silent) for client in self._others]
        return algorithm.adder.add([own, *shares]), self._open(shares[-1], request)

    def _open(self, message: bytes, request: EmbeddingsRequest) -> FloatArray:
        return embedder_of(self._clients[True]).total(message, request.round)

    def _numbers(self, seen: Sequence[FloatArray], length: int) -> tuple[float, float, float, float]:
        along = [float(one @ self._directions[number % 2]) for number, one in enumerate(seen)]
        differ = 0.0
        if len(seen) > 1:
            differ = float((seen[0] - seen[1]) @ (self._directions[0] - self._directions[1]))
        return float(np.sum(along)), along[0], float(length), differ

    def close(self) -> None:
        """Close the ledger."""
        if self._setting.private is not None:
            self._setting.private.close()


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


def _told(client: Client, request: EmbeddingsRequest) -> bytes:
    reply = client.respond(request)
    if not isinstance(reply, Embeddings):
        raise TypeError(type(reply).__name__)
    return reply.contribution
