"""Updates: did a record take part in DP-SGD?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from privfair.arrays import FloatArray
from privfair.empirical.attack import Claimed, asked, claimed
from privfair.empirical.gradients import Steps, change, clipped_gradients, loud_parameters
from privfair.empirical.subject import FEATURES, Subject, first_client, twin
from privfair.messages import Parameters, PrivateWork, Task, TrainRequest, Update
from privfair.privacy.pricing import UPDATES

FAR = 50.0
STEP = 1e-3  # how far a step moves the parameters, in units of a clipped gradient: too little to change the gradients


def private_work(subject: Subject, step: float = STEP) -> PrivateWork:
    """DP-SGD as planned, in steps of a size that the attacker chooses: sizes are not part of the claim."""
    u = subject.terms.updates
    if u is None:
        raise ValueError("updates are not private")
    return PrivateWork(
        steps=u.steps,
        sampling_rate=u.sampling_rate,
        noise_multiplier=u.noise_multiplier,
        max_grad_norm=u.max_grad_norm,
        divisor=1.0,
        learning_rate=step / u.max_grad_norm,
    )


class UpdatesAttack:
    """A record whose gradient is as large as clipping allows, or no record at all (replaced: the opposite gradient).

    The attacker is the server: it chooses parameters and step size, and sees the client's own update of every round, as
    it is without encryption or for somebody who has the key.
    """

    channel: ClassVar[str] = UPDATES
    about: ClassVar[str] = "the updates of one client in all rounds, with and without one record"

    @staticmethod
    def why_not(subject: Subject) -> str | None:
        """Updates without noise have no ε."""
        return "sent without noise: no ε is claimed" if subject.terms.updates is None else None

    def __init__(self, subject: Subject) -> None:
        """Both clients, and the requests of all rounds."""
        work = private_work(subject)
        end = np.zeros((1, FEATURES))
        end[0, 0] = FAR
        record, opposite = subject.records(end), subject.records(-end)
        self._setting = subject.setting(record, self.channel)
        present = first_client(self._setting)
        absent = twin(self._setting, opposite if subject.replaces else record.take([]))
        self._clients = {True: present, False: absent}
        self._cells = [int(c) for c in np.flatnonzero(present.data.membership[0])]
        values = loud_parameters(present, Task(), work.max_grad_norm)
        own = clipped_gradients(present, values, Task(), work.max_grad_norm)[0]
        other = clipped_gradients(absent, values, Task(), work.max_grad_norm)[0] if subject.replaces else -own
        self._direction: FloatArray = (own - other) / np.linalg.norm(own - other)
        share = float(own @ self._direction) / work.max_grad_norm
        self._steps = Steps.of(work, subject.replaces, share)
        self._unit = work.learning_rate * work.max_grad_norm * share
        self._requests = [
            TrainRequest(r, Parameters(values), Task(), work, weight=1.0) for r in range(subject.trainings)
        ]

    @property
    def views(self) -> Mapping[str, tuple[int, ...]]:
        """Whoever sees every update of the client."""
        return {"white-box": (0, 1, 2, 3)}

    def claim(self) -> Claimed:
        """Of all rounds."""
        asked(self._setting, self._requests)
        return claimed(self._setting, self._cells)

    def trial(self, present: bool) -> tuple[float, ...]:
        """Log-likelihood ratio of all updates; their sum along the record's gradient; their size; their length."""
        ratios, seen, size, length = [], [], 0.0, 0
        for request in self._requests:
            reply = self._clients[present].respond(request)
            if not isinstance(reply, Update):
                raise TypeError(type(reply).__name__)
            moved = -change(self._setting, reply)
            seen.append(float(moved @ self._direction) / self._unit)
            ratios.append(self._steps.log_ratio(seen[-1]))
            size += float(moved @ moved)
            length += len(reply.contribution)
        return float(np.sum(ratios)), float(np.sum(seen)), size, float(length)

    def close(self) -> None:
        """Close the ledger."""
        if self._setting.private is not None:
            self._setting.private.close()
