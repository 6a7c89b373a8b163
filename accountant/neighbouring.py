"""What counts as a neighbouring dataset: the adjacency and the unit it speaks of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from accountant.errors import InputError


class Adjacency(StrEnum):
    """How two neighbouring datasets differ."""

    ADD_OR_REMOVE = "add-or-remove"
    """One has everything the other has, and one unit more."""
    REPLACE_ONE = "replace-one"
    """Both have the same size; one unit is exchanged for another."""


class Unit(StrEnum):
    """What is added, removed or replaced."""

    RECORD = "record"
    CLIENT = "client"


@dataclass(frozen=True)
class Neighbouring:
    """One adjacency for one unit: the sentence every epsilon is about."""

    adjacency: Adjacency
    unit: Unit

    def __str__(self) -> str:
        """For statements: "add-or-remove one record"."""
        if self.adjacency is Adjacency.REPLACE_ONE:
            return f"replace one {self.unit}"
        return f"add or remove one {self.unit}"


class NeighbouringMismatch(InputError):
    """Events of different adjacency or unit were put together; their costs do not add up to anything."""


def as_adjacency(value: Adjacency | str) -> Adjacency:
    """The adjacency of that name, or `InputError`."""
    try:
        return Adjacency(value)
    except ValueError:
        raise InputError("adjacency", f"must be one of {[str(a) for a in Adjacency]}", value) from None


def as_unit(value: Unit | str) -> Unit:
    """The unit of that name, or `InputError`."""
    try:
        return Unit(value)
    except ValueError:
        raise InputError("unit", f"must be one of {[str(u) for u in Unit]}", value) from None


def common_neighbouring(found: Iterable[Neighbouring | None]) -> Neighbouring | None:
    """The one notion of neighbours all of them share; None when none of them names any.

    None fits everything (a release that is not private, or nothing at all). Two different ones raise
    `NeighbouringMismatch`: epsilon under add-or-remove and epsilon under replace-one are bounds on
    different quantities, and so are epsilon for a record and epsilon for a client.
    """
    common: Neighbouring | None = None
    for neighbouring in found:
        if neighbouring is None or neighbouring == common:
            continue
        if common is not None:
            raise NeighbouringMismatch(
                "events composed together",
                "must speak of the same neighbours",
                f"{common} and {neighbouring}",
                "State every sensitivity for one adjacency and one unit, or account for them separately.",
            )
        common = neighbouring
    return common
