"""Which releases a record pays for, for every kind of record there can be, without listing more kinds than needed.

A record is in one client and, of each attribute, in one group (or in a group that nothing was released about). It
pays for releases from all clients or its client, over all groups or its own: {"", client} × {"", its groups}.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from accountant.rdp_moments import Array
from accountant.spending import Payer, attribute_of

# So many kinds of records are looked at one by one; where there are more, only their largest curve is.
MOST_KINDS = 1024

CurveOfPayer = Callable[[Payer], Array]


@dataclass(frozen=True)
class Client:
    """What the records of one client pay for: `always`, and of each attribute the payers of one of its groups."""

    name: str
    always: tuple[Payer, ...]
    attributes: Mapping[str, tuple[tuple[Payer, ...], ...]]

    @property
    def kinds(self) -> int:
        """How many kinds of records this client can have."""
        return math.prod(len(groups) for groups in self.attributes.values())

    def records(self) -> Iterator[tuple[Payer, ...]]:
        """The payers of every kind of record."""
        for choice in product(*self.attributes.values()):
            yield self.always + tuple(payer for payers in choice for payer in payers)

    def largest(self, curve: CurveOfPayer, size: int) -> Array:
        """At each order the largest RDP of any record: RDP adds, so each attribute has its dearest group.

        Where two records' curves cross, this is above both; it is never below any.
        """
        total = self.sum_of(self.always, curve, size)
        for groups in self.attributes.values():
            total += np.max([self.sum_of(payers, curve, size) for payers in groups], axis=0)
        return total

    @staticmethod
    def sum_of(payers: Iterable[Payer], curve: CurveOfPayer, size: int) -> Array:
        """The RDP of these payers together."""
        total = np.zeros(size)
        for payer in payers:
            total += curve(payer)
        return total


def clients(payers: Iterable[Payer], client: str = "", group: str = "") -> list[Client]:
    """What the records of each client pay for, of those who paid; or of one client, or of one group, only.

    A client or group that none of the payers names still pays for the releases that touch everybody. Without a
    named client there is one without a name: a record has to be somewhere.
    """
    of_owner: dict[str, list[Payer]] = {}
    for payer in payers:
        of_owner.setdefault(payer[0], []).append(payer)
    shared = of_owner.pop("", [])
    names = [client] if client else sorted(of_owner) or [""]
    return [_client(name, sorted(shared + of_owner.get(name, [])), group) for name in names]


def _client(name: str, payers: list[Payer], group: str) -> Client:
    only = attribute_of(group)
    groups: dict[str, dict[str, list[Payer]]] = {only: {group: []}} if group else {}
    for payer in payers:
        attribute = attribute_of(payer[1])
        if payer[1] and (attribute != only or payer[1] == group):
            groups.setdefault(attribute, {}).setdefault(payer[1], []).append(payer)
    return Client(
        name,
        tuple(payer for payer in payers if not payer[1]),
        {attribute: tuple(map(tuple, found.values())) for attribute, found in groups.items()},
    )


def listable(found: Iterable[Client]) -> tuple[list[Client], list[Client]]:
    """(clients whose kinds of records are few enough to be listed, those that have too many)."""
    everyone = list(found)
    room = max(1, MOST_KINDS // max(1, len(everyone)))
    few = [client for client in everyone if client.kinds <= room]
    return few, [client for client in everyone if client.kinds > room]


def largest_on_change(
    client: Client, attribute: str, grouped: CurveOfPayer, replaced: CurveOfPayer, size: int
) -> Array:
    """At each order the largest RDP between datasets in which one record is in another group of the attribute.

    The old group's releases see a removal, the new group's an addition; either may be a group that nothing was
    released about, so of one group alone that group still pays. All other releases on the record may see it
    changed, that is replaced (`replaced`). An attribute that combines this one with others ("sex,race") changes
    too: there both are possible. All are Rényi bounds for the same two datasets, so they add.
    """
    total = client.sum_of(client.always, replaced, size)
    changed = set(attribute.split(","))
    for name, groups in client.attributes.items():
        moved = _two_largest([client.sum_of(payers, grouped, size) for payers in groups])
        if name == attribute:
            total += moved
            continue
        stayed = np.max([client.sum_of(payers, replaced, size) for payers in groups], axis=0)
        total += np.maximum(moved, stayed) if changed & set(name.split(",")) else stayed
    return total


def _two_largest(curves: list[Array]) -> Array:
    """At each order the sum of the two largest; of a single curve, itself."""
    result: Array = np.sum(np.sort(np.array(curves), axis=0)[-2:], axis=0)
    return result
