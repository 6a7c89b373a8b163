"""Counts with noise: of training records by cell, and of test records by group, label and decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from privfair.audit.attack import (
    FEATURES,
    MOST_OTHERS,
    Claimed,
    Coins,
    SharedWorlds,
    Subject,
    Worlds,
    WorldsAttack,
    cells_of,
    in_the_open,
    only_trained,
    planned,
    worlds,
)
from privfair.audit.updates import loud_parameters
from privfair.channels.counts import COUNTS
from privfair.channels.evaluation import EVALUATION
from privfair.clients.client import confusion_tables
from privfair.datasets.records import ClientData
from privfair.federated.messages import Counts, Evaluation, Parameters, Request, Task
from privfair.mechanisms.count_release import CountNoise
from privfair.util import FloatArray

OTHERS = 20


class _NoisyCounts(WorldsAttack):
    """Twenty records, or twenty-one: how likely are the noisy counts under each?

    A trial's numbers: the log-likelihood ratio of all counts; their sum; the difference from the bystander's counts;
    and the differences between the first count that the record moves and each other count of the message, which say
    nothing if every count has noise of its own. Under masks the counts are parts of totals, with a share of the noise
    each.
    """

    def __init__(self, worlds: Worlds, request: Request, noise: CountNoise) -> None:
        self._worlds, self._request, self._noise = worlds, request, noise
        self._exact = {True: self._true(True), False: self._true(False)}
        moved = self._exact[True] - self._exact[False]
        self._moved = np.flatnonzero(moved)
        self._rest = np.flatnonzero(moved == 0)[:MOST_OTHERS]
        self._sign = np.sign(moved[self._moved[0]])

    def _true(self, present: bool) -> FloatArray:
        raise NotImplementedError

    def _released(self, reply: Counts | Evaluation) -> FloatArray:
        raise NotImplementedError

    @property
    def views(self) -> Mapping[str, tuple[int, ...]]:
        """The server, which receives them; with noise in shares the server with others."""
        return self._views("server", 3 + len(self._rest))

    def trial(self, present: Coins) -> FloatArray:
        """One message of every client."""
        kind: type[Counts | Evaluation] = Counts if self._request.channel == COUNTS else Evaluation
        rows = []
        for seen in self._seen(present, self._request, kind, self._opened):
            beside = 0.0 if seen.beside is None else seen.beside[self._moved].sum() / self._noise.steps
            rows.append([n for found in seen.vectors for n in self._numbers(found / self._noise.steps, beside)])
        return np.array(rows, dtype=np.float64)

    def _opened(self, reply: Counts | Evaluation) -> FloatArray:
        """The counts of a message, in steps of their grid."""
        return in_the_open(reply.contribution) if isinstance(self._worlds, SharedWorlds) else self._released(reply)

    def _numbers(self, found: FloatArray, beside: float) -> list[float]:
        ratio = float(np.sum(self._log(found, True) - self._log(found, False)))
        first = self._sign * found[self._moved[0]]
        against = first - self._sign * found[self._rest]
        return [ratio, float(found.sum()), float(found[self._moved].sum() - beside), *(float(a) for a in against)]

    def _log(self, found: FloatArray, present: bool) -> FloatArray:
        distance = np.abs(found - self._exact[present]) / self._noise.scale
        return np.asarray(-distance if self._noise.kind == "laplace" else -0.5 * distance**2)


class CountsAttack(_NoisyCounts):
    """The counts that every client releases before the first round."""

    channel: ClassVar[str] = COUNTS
    about: ClassVar[str] = "the noisy counts of every client, with and without one record"

    @staticmethod
    def why_not(subject: Subject) -> str | None:
        """Counts that are public have no ε."""
        return "declared public" if subject.release_plan.counting is None else None

    def __init__(self, subject: Subject) -> None:
        """The clients with and without the record."""
        noise = subject.release_plan.counting
        if noise is None:
            raise ValueError("counts are public")
        having = subject.records(np.zeros((OTHERS + 1, FEATURES)))
        lacking = having.take(np.arange(OTHERS))
        both = worlds(subject, self.channel, only_trained(having), only_trained(lacking))
        super().__init__(both, planned(subject, both.simulation, COUNTS, None), noise)

    def _true(self, present: bool) -> FloatArray:
        data = (self._worlds.present if present else self._worlds.absent).data
        return np.asarray(data.cells.tell(data.membership), dtype=np.float64)

    def _released(self, reply: Counts | Evaluation) -> FloatArray:
        if not isinstance(reply, Counts):
            raise TypeError(type(reply).__name__)
        partition = self._worlds.present.data.cells.notion.partition
        found = reply.cells if partition else np.append(reply.cells, reply.records)
        return np.asarray(found, dtype=np.float64)

    def claim(self) -> Claimed:
        """Of one release."""
        return self._worlds.claim([self._request], cells_of(self._worlds.present))


class EvaluationAttack(_NoisyCounts):
    """The noisy tables of test records that every client releases after the last round."""

    channel: ClassVar[str] = EVALUATION
    about: ClassVar[str] = "the noisy tables of every client's test records, with and without one record"

    @staticmethod
    def why_not(subject: Subject) -> str | None:
        """Most plans have no evaluation by clients."""
        return "not in the plan (privacy.evaluation)" if subject.release_plan.evaluation is None else None

    def __init__(self, subject: Subject) -> None:
        """The clients with and without the test record; where counts are public, with one of the other label."""
        noise = subject.release_plan.evaluation
        if noise is None:
            raise ValueError("no evaluation is planned")
        low, high = subject.schema.label_range
        other = replace(subject.kind, label=low if subject.kind.label == high else high)
        having = subject.records(np.zeros((OTHERS + 1, FEATURES)))
        lacking = having.take(np.arange(OTHERS))
        if subject.replaces:
            lacking = subject.records(np.zeros((OTHERS + 1, FEATURES)), [*[subject.kind] * OTHERS, other])
        train = having.take([0])
        both = worlds(
            subject, self.channel, ClientData("attacked", train, having), ClientData("attacked", train, lacking)
        )
        self._groups = tuple(len(attribute.values) for attribute in subject.schema.sensitive)
        self._values = loud_parameters(both.present, Task(), 1.0)
        request = planned(subject, both.simulation, EVALUATION, None)
        super().__init__(both, replace(request, model=Parameters(self._values)), noise)

    def _true(self, present: bool) -> FloatArray:
        client = self._worlds.present if present else self._worlds.absent
        client.model.load(self._values)
        return _flat(confusion_tables(client.test_data, client.model, self._groups))

    def _released(self, reply: Counts | Evaluation) -> FloatArray:
        if not isinstance(reply, Evaluation):
            raise TypeError(type(reply).__name__)
        return _flat(reply.confusion)

    def claim(self) -> Claimed:
        """Of one release."""
        return self._worlds.claim([self._request], [])


def _flat(tables: Sequence[np.ndarray]) -> FloatArray:
    return np.concatenate([np.asarray(table, dtype=np.float64).reshape(-1) for table in tables])
