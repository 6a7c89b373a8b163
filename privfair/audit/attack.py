"""What every attack has: two worlds of clients that it asks, and a claim that is read from the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from accountant.events import Composed, Event, Repeated
from accountant.spending import Spend
from privfair.audit.subject import Subject, all_clients, backend_of, twin
from privfair.clients.client import Client
from privfair.datasets.records import ClientData, Records
from privfair.federated.messages import Request
from privfair.privacy.planner import Planner, pld_or_rdp
from privfair.privacy.run_ledger import cell_labels
from privfair.privacy.statement import account
from privfair.runs.assembly import Simulation
from privfair.util import FloatArray

Coins = NDArray[np.bool_]
MOST_OTHERS = 8  # cells beside the record's whose noise is compared with its own
R = TypeVar("R")


@dataclass(frozen=True)
class Claimed:
    """What the ledger says the attacked record pays: the events, and their ε as the accountant computes it."""

    event: Event
    epsilon: float
    others: Mapping[str, Claimed] = field(default_factory=dict)
    """What is claimed instead against the adversaries named here, who have less noise to see through."""

    def against(self, adversary: str) -> Claimed:
        """The claim that holds for this adversary."""
        return self.others.get(adversary, self)


class Attack(Protocol):
    """One channel, attacked on neighbouring datasets that are as different as one record can make them."""

    channel: ClassVar[str]
    about: ClassVar[str]
    """What is compared, in a sentence for people."""
    fewest: ClassVar[int] = 80
    """Trials of each dataset, however little time there is."""

    @staticmethod
    def why_not(subject: Subject) -> str | None:
        """Why a run of this plan has nothing to attack here; None if it has."""
        ...

    def __init__(self, subject: Subject) -> None:
        """Make both datasets."""
        ...

    @property
    def views(self) -> Mapping[str, tuple[int, ...]]:
        """The columns of a trial's numbers that each adversary sees, by the adversary's name."""
        ...

    @property
    def clients(self) -> Sequence[str]:
        """The attacked clients: each by itself, all in the same trial."""
        ...

    def claim(self) -> Claimed:
        """The cost of everything that a trial releases, from the ledger rows of the same requests.

        It is one claim for all adversaries except those that it names.
        """
        ...

    def trial(self, present: Coins) -> FloatArray:
        """Fresh releases of every client with or without its record, as (clients, numbers).

        Numbers are larger if the record seems present, or smaller: the test finds out which.
        """
        ...

    def close(self) -> None:
        """Close the ledger."""
        ...


class Worlds:
    """The plan's clients twice, with the attacked record and without it, behind the configured engine.

    With several clients, one more, the bystander, never has the record. Subtracting its message from an attacked
    client's helps only if two clients have the same noise.
    """

    def __init__(self, subject: Subject, name: str, present: ClientData, absent: ClientData, helpers: int = 0) -> None:
        """The data of every attacked client in either world. `helpers`: so many more clients without records."""
        self.names = subject.clients
        count = len(self.names)
        holders = [ClientData(client, present.train, present.test) for client in self.names]
        if count > 1:
            holders.append(ClientData("bystander", absent.train, absent.test))
        none = present.train.take([])
        self.simulation = subject.simulation(
            [*holders, *(ClientData(f"helper{k}", none, none) for k in range(helpers))], name
        )
        having = all_clients(self.simulation)
        self.helpers = having[len(holders) :]
        lacking = [twin(self.simulation, absent.train, k, absent.test) for k in range(count)]
        self.present, self.absent = having[0], lacking[0]
        self._bystander = [2 * count] if count > 1 else []
        self._backend = backend_of(self.simulation, [*having[:count], *lacking, *having[count : len(holders)]])

    def ask(self, coins: Coins, request: Request, kind: type[R]) -> tuple[list[R], R | None]:
        """Every client's reply, with its record if its coin says so; and the bystander's, if there is one."""
        count = len(self.names)
        members = [k if there else count + k for k, there in enumerate(coins)]
        replies: list[Any] = self._backend.exchange([*members, *self._bystander], lambda _: request)
        for reply in replies:
            if not isinstance(reply, kind):
                raise TypeError(type(reply).__name__)
        return replies[:count], replies[count] if self._bystander else None

    def claim(self, requests: Sequence[Request], cells: Sequence[int]) -> Claimed:
        """The cost of these requests to the first client, for a record of these cells."""
        asked(self.simulation, requests)
        return claimed(self.simulation, cells)

    def close(self) -> None:
        """Close the ledger."""
        self.simulation.close()


class WorldsAttack(Attack):
    """An attack on all clients of the plan, each in two worlds; subclasses set `_worlds`."""

    _worlds: Worlds

    @property
    def clients(self) -> Sequence[str]:
        """All clients of the plan."""
        return self._worlds.names

    def close(self) -> None:
        """Close the ledger."""
        self._worlds.close()


def planned(subject: Subject, simulation: Simulation, channel: str, number: int | None = 0, client: int = -1) -> Any:
    """The plan's request to a client, or to the first that has one: attacks change what they may choose."""
    requests = simulation.server.requests(channel, subject.release_plan, number)
    return requests[client] if client >= 0 else next(iter(requests.values()))


def only_trained(records: Records) -> ClientData:
    """A client with these training records, and none to test on."""
    return ClientData("attacked", records, records.take([]))


def cells_of(client: Client, row: int = -1) -> list[int]:
    """The cells of one training record."""
    return [int(c) for c in np.flatnonzero(client.data.membership[row])]


def asked(simulation: Simulation, requests: Sequence[Request]) -> None:
    """Have the first client answer these requests through the ledger gateway, so that they are in the ledger."""
    for request in requests:
        simulation.backend.exchange([0], lambda _, one=request: one)  # type: ignore[misc]


def claimed(simulation: Simulation, cells: Sequence[int]) -> Claimed:
    """What everything in the ledger costs a record of these cells of the first client."""
    if simulation.run_ledger is None or simulation.spec.planner is None:
        raise ValueError("only private runs are attacked")
    rows = simulation.run_ledger.spends()
    labels = cell_labels(simulation.cells, simulation.federation.schema)
    paid = {"", *(labels[cell] for cell in cells)}
    return priced([row for row in rows if row.group in paid], simulation.spec.planner, simulation.config.privacy.delta)


def priced(spends: Sequence[Spend], planner: Planner, delta: float) -> Claimed:
    """What these rows of a ledger claim at δ."""
    accountant = account(spends, planner.neighbouring)
    event = Composed(tuple(Repeated(spend.event, spend.count) for spend in spends))
    return Claimed(event, pld_or_rdp(lambda method: accountant.epsilon(delta, method)))
