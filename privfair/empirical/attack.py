"""What every attack promises, and how its claim is read from the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from accountant.events import Composed, Event, Repeated
from accountant.spending import Spend
from privfair.empirical.subject import Subject
from privfair.messages import Request
from privfair.privacy.books import cell_labels
from privfair.privacy.by_pld import pld_or_rdp
from privfair.privacy.statement import account
from privfair.setting import Setting


@dataclass(frozen=True)
class Claimed:
    """What the ledger says the attacked record pays: the events, and their ε as the accountant tells it."""

    event: Event
    epsilon: float
    others: Mapping[str, Claimed] = field(default_factory=dict)
    """What is claimed instead against adversaries that are named here: who has less noise to see through."""

    def against(self, adversary: str) -> Claimed:
        """The claim that holds for this adversary."""
        return self.others.get(adversary, self)


class Attack(Protocol):
    """One channel, attacked on neighbouring datasets that are as different as one record can make them."""

    channel: ClassVar[str]
    about: ClassVar[str]
    """What is compared, in a sentence for people."""

    @staticmethod
    def why_not(subject: Subject) -> str | None:
        """Why there is nothing to attack here, in a run of this plan; None where there is."""
        ...

    def __init__(self, subject: Subject) -> None:
        """Make both datasets."""
        ...

    @property
    def views(self) -> Mapping[str, tuple[int, ...]]:
        """Which of a trial's numbers each adversary has, by the adversary's name."""
        ...

    def claim(self) -> Claimed:
        """What everything that a trial releases costs, by the ledger; written by the desk, for the same requests.

        One claim for all adversaries, but for those that it names.
        """
        ...

    def trial(self, present: bool) -> Sequence[float]:
        """Fresh releases with or without the record, as numbers that are larger where it seems to be there."""
        ...

    def close(self) -> None:
        """Close the ledger."""
        ...


def asked(setting: Setting, requests: Sequence[Request]) -> None:
    """Have the first client answer these requests at its desk, so that they are in the ledger."""
    for request in requests:
        setting.backend.exchange([0], lambda _, one=request: one)  # type: ignore[misc]


def claimed(setting: Setting, cells: Sequence[int]) -> Claimed:
    """What everything in the ledger costs a record of these cells of the first client."""
    private = setting.private
    if private is None:
        raise ValueError("only private runs are attacked")
    spends = [spend for _, spend in private.books.ledger.spends(run=private.books.run)]
    labels = {"", *(cell_labels(setting.cells, setting.federation.schema)[cell] for cell in cells)}
    accountant = account(spends, private.planner.neighbouring)
    delta = setting.config.privacy.delta
    epsilon = pld_or_rdp(lambda method: accountant.epsilon(delta, method))
    return Claimed(_event([spend for spend in spends if spend.group in labels]), epsilon)


def _event(spends: Sequence[Spend]) -> Event:
    return Composed(tuple(Repeated(spend.event, spend.count) for spend in spends))
