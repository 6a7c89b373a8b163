"""Counts: is one record more in its cell?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from privfair.empirical.attack import Claimed, asked, claimed
from privfair.empirical.subject import FEATURES, Subject, first_client, twin
from privfair.messages import Counts, CountsRequest
from privfair.privacy.pricing import COUNTS

OTHERS = 20


class CountsAttack:
    """Twenty records, or twenty-one: how likely are the told counts under each?"""

    channel: ClassVar[str] = COUNTS
    about: ClassVar[str] = "the noisy counts of one client, with and without one record"

    @staticmethod
    def why_not(subject: Subject) -> str | None:
        """Counts that are public have no ε."""
        return "declared public" if subject.terms.counting is None else None

    def __init__(self, subject: Subject) -> None:
        """Both clients."""
        noise = subject.terms.counting
        if noise is None:
            raise ValueError("counts are public")
        self._noise, self._request = noise, CountsRequest(noise)
        with_record = subject.records(np.zeros((OTHERS + 1, FEATURES)))
        self._setting = subject.setting(with_record, self.channel)
        present = first_client(self._setting)
        absent = twin(self._setting, with_record.take(np.arange(OTHERS)))
        self._clients = {True: present, False: absent}
        self._exact = {there: c.data.cells.tell(c.data.membership) for there, c in self._clients.items()}
        self._cells = np.flatnonzero(present.data.membership[-1])

    @property
    def views(self) -> Mapping[str, tuple[int, ...]]:
        """The server, which gets them."""
        return {"server": (0, 1)}

    def claim(self) -> Claimed:
        """Of one release."""
        asked(self._setting, [self._request])
        return claimed(self._setting, [int(c) for c in self._cells])

    def trial(self, present: bool) -> tuple[float, float]:
        """The log-likelihood ratio of the told counts, and their sum."""
        reply = self._clients[present].respond(self._request)
        if not isinstance(reply, Counts):
            raise TypeError(type(reply).__name__)
        cells = self._clients[True].data.cells
        told = reply.cells if cells.notion.partition else np.append(reply.cells, reply.records)
        return float(np.sum(self._log(told, True) - self._log(told, False))), float(np.sum(told))

    def _log(self, told: np.ndarray, present: bool) -> np.ndarray:
        distance = np.abs(told - self._exact[present]) / self._noise.scale
        return np.asarray(-distance if self._noise.kind == "laplace" else -0.5 * distance**2)

    def close(self) -> None:
        """Close the ledger."""
        if self._setting.private is not None:
            self._setting.private.close()
