"""What was released: frozen, hashable events whose meaning never changes, with JSON in and out."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar

from accountant.errors import InputError, require_finite, require_positive
from accountant.mechanisms import (
    JSON_VERSION,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    Gaussian,
    Laplace,
    Mechanism,
    Nothing,
    NotPrivate,
    OnGrid,
    set_field,
)
from accountant.neighbouring import Adjacency, Neighbouring, common_neighbouring

__all__ = [
    "JSON_VERSION",
    "Composed",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "Event",
    "FixedSizeSampled",
    "Gaussian",
    "Laplace",
    "Mechanism",
    "NotPrivate",
    "Nothing",
    "OnGrid",
    "PoissonSampled",
    "Repeated",
    "canonical_json",
    "count_parts",
]


MOST_REPEATS = 2**53  # whole numbers up to here are exact as floats


@dataclass(frozen=True)
class PoissonSampled(Event):
    """A mechanism run on a sample that takes every unit independently with probability `rate`.

    Under replace-one there are two bounds, by how far a unit's presence or absence moves the query
    (`presence_sensitivity`). A sum of vectors clipped to norm C moves by C, half its replace-one sensitivity
    2 C: say so, and the bound is exact. Otherwise presence is taken to move it as far as a replacement does,
    which holds whenever some record contributes nothing (leaving out is then replacing by that record).
    """

    kind: ClassVar[str] = "poisson-sampled"
    rate: float
    event: Mechanism
    presence_sensitivity: float | None = None

    def __post_init__(self) -> None:
        """Check that the rate is a probability and that what is sampled is one mechanism."""
        rate = require_finite("sampling_rate", self.rate)
        if not 0 < rate <= 1:
            remedy = "It is a probability, not a batch size."
            raise InputError("sampling_rate", "must be in (0, 1]", self.rate, remedy)
        set_field(self, "rate", rate)
        _require_mechanism(self.event, "PoissonSampled")
        if self.presence_sensitivity is None:
            return
        presence = require_positive("presence_sensitivity", self.presence_sensitivity)
        if self.event.adjacency is not Adjacency.REPLACE_ONE:
            remedy = "Under add-or-remove the sensitivity itself says how far presence moves the query."
            raise InputError("presence_sensitivity", "is for replace-one only", presence, remedy)
        if 2 * presence < self.event.sensitivity:
            remedy = "A replacement is a removal and an addition, so it moves at most twice as far as they do."
            rule = f"must be at least half the sensitivity {self.event.sensitivity}"
            raise InputError("presence_sensitivity", rule, presence, remedy)
        if presence > self.event.sensitivity:
            rule = f"must be at most the sensitivity {self.event.sensitivity}"
            raise InputError("presence_sensitivity", rule, presence, "Raise the sensitivity to it.")
        if isinstance(self.event, OnGrid) and not presence.is_integer():
            raise InputError("presence_sensitivity", "must be a whole number of grid steps", presence)
        set_field(self, "presence_sensitivity", presence)

    @property
    def neighbouring(self) -> Neighbouring:
        """The neighbours of the sampled mechanism."""
        return self.event.neighbouring

    @property
    def presence(self) -> float:
        """How far one unit's presence moves the query."""
        if self.presence_sensitivity is None:
            return self.event.sensitivity
        return self.presence_sensitivity

    @property
    def moves_both_ways(self) -> bool:
        """Whether presence moves the query half as far as replacement: a sum of vectors around zero."""
        return self.event.adjacency is Adjacency.REPLACE_ONE and 2 * self.presence == self.event.sensitivity

    def body(self) -> dict[str, Any]:
        """Its kind and fields as JSON values."""
        values: dict[str, Any] = {"kind": self.kind, "rate": self.rate, "event": self.event.body()}
        if self.presence_sensitivity is not None:
            values["presence_sensitivity"] = self.presence_sensitivity
        return values


@dataclass(frozen=True)
class FixedSizeSampled(Event):
    """A mechanism run on `sample_size` of `population` units, drawn without replacement; replace-one only."""

    kind: ClassVar[str] = "fixed-size-sampled"
    sample_size: int
    population: int
    event: Mechanism

    def __post_init__(self) -> None:
        """Check the sizes; under add-or-remove the population itself would be a secret."""
        set_field(self, "sample_size", _require_count("sample_size", self.sample_size))
        set_field(self, "population", _require_count("population", self.population))
        if self.sample_size > self.population:
            rule = f"must be at most the population {self.population}"
            raise InputError("sample_size", rule, self.sample_size, "A unit is drawn at most once.")
        _require_mechanism(self.event, "FixedSizeSampled")
        if self.event.adjacency is not Adjacency.REPLACE_ONE:
            raise InputError(
                "FixedSizeSampled",
                "must be accounted under replace-one",
                str(self.event.adjacency),
                "Its rate sample_size/population shows the population, which add-or-remove has to hide. "
                "Declare the population public and use replace-one, or sample by PoissonSampled.",
            )

    @property
    def neighbouring(self) -> Neighbouring:
        """The neighbours of the sampled mechanism."""
        return self.event.neighbouring

    @property
    def rate(self) -> float:
        """The probability that one given unit is drawn, never rounded down."""
        exact_or_nearest = self.sample_size / self.population
        return min(1.0, math.nextafter(exact_or_nearest, 2.0))

    def body(self) -> dict[str, Any]:
        """Its kind and fields as JSON values."""
        sizes = {"sample_size": self.sample_size, "population": self.population}
        return {"kind": self.kind, **sizes, "event": self.event.body()}


@dataclass(frozen=True)
class Composed(Event):
    """Several releases on the same data, all of the same adjacency and unit."""

    kind: ClassVar[str] = "composed"
    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        """Check that every part is an event and that they speak of the same neighbours."""
        set_field(self, "events", tuple(self.events))
        for event in self.events:
            _require_event(event)
        common_neighbouring(event.neighbouring for event in self.events)

    @property
    def neighbouring(self) -> Neighbouring | None:
        """The neighbours all parts share."""
        return common_neighbouring(event.neighbouring for event in self.events)

    def body(self) -> dict[str, Any]:
        """Its kind and parts as JSON values."""
        return {"kind": self.kind, "events": [event.body() for event in self.events]}


@dataclass(frozen=True)
class Repeated(Event):
    """The same release, `count` times, with fresh noise (and a fresh sample) each time."""

    kind: ClassVar[str] = "repeated"
    event: Event
    count: int

    def __post_init__(self) -> None:
        """Check that there is an event and a whole number of repetitions."""
        _require_event(self.event)
        set_field(self, "count", _require_count("count", self.count, "No repetition at all is Nothing()."))
        if _most_repeats(self) > MOST_REPEATS:
            raise InputError("count", "must be at most 2**53, nested repetitions multiplied", "more")

    @property
    def neighbouring(self) -> Neighbouring | None:
        """The neighbours of the repeated release."""
        return self.event.neighbouring

    def body(self) -> dict[str, Any]:
        """Its kind and fields as JSON values."""
        return {"kind": self.kind, "event": self.event.body(), "count": self.count}


def canonical_json(event: Event) -> str:
    """One and only one text for an event: sorted keys, no spaces, floats that round-trip exactly."""
    return json.dumps(event.to_json(), sort_keys=True, separators=(",", ":"), allow_nan=False)


def count_parts(event: Event, count: int = 1) -> Counter[Event]:
    """How often each indivisible release happens in an event: compositions taken apart, nothing dropped."""
    parts: Counter[Event] = Counter()
    stack = [(event, count)]
    while stack:
        current, times = stack.pop()
        if isinstance(current, Composed):
            stack.extend((part, times) for part in current.events)
        elif isinstance(current, Repeated):
            stack.append((current.event, times * current.count))
        else:
            parts[current] += times
    return parts


def _most_repeats(event: Event) -> int:
    """The largest number of times that any part of an event happens by nested repetitions."""
    if isinstance(event, Repeated):
        return event.count * _most_repeats(event.event)
    if isinstance(event, Composed):
        return max((_most_repeats(part) for part in event.events), default=1)
    return 1


def _require_event(value: object) -> None:
    if not isinstance(value, Event):
        remedy = "Events of dp-accounting go through accountant.foreign.from_dp_event first."
        raise InputError("event", "must be an accountant Event", type(value).__name__, remedy)


def _require_mechanism(value: object, where: str) -> None:
    if not isinstance(value, Mechanism):
        raise InputError(
            f"{where}.event",
            "must be one Gaussian, Laplace, DiscreteGaussian or DiscreteLaplace",
            value,
            "Several queries on one sample need one joint bound; sample anew for each, and compose those.",
        )


def _require_count(name: str, value: int, remedy: str = "") -> int:
    number = require_finite(name, value, remedy)
    if not number.is_integer() or number < 1:
        raise InputError(name, "must be a whole number of at least 1", value, remedy)
    return int(value)
