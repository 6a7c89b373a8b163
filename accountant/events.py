"""What was released: frozen, hashable events whose meaning never changes, with JSON in and out.

An event is noise on a query (`Mechanism`), such noise on a sample, several events together, nothing at all, or
something without noise. Each names the neighbouring datasets that its sensitivity is for: an adjacency and a unit.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any, ClassVar

from accountant.errors import InputError, require_finite, require_positive

JSON_VERSION = 1
MOST_REPEATS = 2**53  # whole numbers up to here are exact as floats
KINDS: dict[str, type[Event]] = {}


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


@dataclass(frozen=True)
class Event:
    """One release, or several together. Use the subclasses."""

    kind: ClassVar[str] = ""

    @property
    def neighbouring(self) -> Neighbouring | None:
        """The neighbours its sensitivity is for; None when it fits every notion of neighbours."""
        return None

    def body(self) -> dict[str, Any]:
        """Its kind and fields as JSON values, without the version that `to_json` adds once."""
        return {"kind": self.kind}

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `Event.from_json` turns back into an equal event."""
        return {"version": JSON_VERSION, **self.body()}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Event:
        """The event a JSON object describes; `InputError` for an unknown version, kind or field."""
        if not isinstance(data, Mapping):
            raise InputError("event", "must be a JSON object", data)
        if data.get("version") != JSON_VERSION or isinstance(data["version"], bool):
            remedy = "It was written by another release of this package."
            raise InputError("event version", f"must be {JSON_VERSION}", data.get("version"), remedy)
        return event_from_body({key: value for key, value in data.items() if key != "version"})

    def __init_subclass__(cls) -> None:
        """Make the kind known to `from_json`."""
        if "kind" in vars(cls):
            KINDS[cls.kind] = cls


@dataclass(frozen=True)
class Nothing(Event):
    """Nothing about the data was released; costs nothing."""

    kind: ClassVar[str] = "nothing"


@dataclass(frozen=True)
class NotPrivate(Event):
    """Something was released without noise; its epsilon is infinite."""

    kind: ClassVar[str] = "not-private"


@dataclass(frozen=True)
class Mechanism(Event):
    """Noise of a fixed scale added to a query of bounded sensitivity.

    `noise_scale` and `sensitivity` are in the same units. The sensitivity is the largest change of the
    query between neighbours under THIS event's own adjacency: a sum of vectors clipped to norm C has
    sensitivity C under add-or-remove and 2 C under replace-one. Nothing is doubled silently later.
    """

    noise_scale: float
    sensitivity: float = 1.0
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE
    unit: Unit = Unit.RECORD

    def __post_init__(self) -> None:
        """Check and normalise, so that equal releases are equal objects."""
        no_noise = "A release without noise is NotPrivate(); one that touches no data is Nothing()."
        set_field(self, "noise_scale", require_positive("noise_scale", self.noise_scale, no_noise))
        set_field(self, "sensitivity", require_positive("sensitivity", self.sensitivity, no_noise))
        set_field(self, "adjacency", as_adjacency(self.adjacency))
        set_field(self, "unit", as_unit(self.unit))
        ratio = self.noise_scale / self.sensitivity
        if not 1e-30 < ratio < 1e30:
            raise InputError("noise_scale / sensitivity", "must be between 1e-30 and 1e30", ratio, no_noise)

    @property
    def neighbouring(self) -> Neighbouring:
        """The neighbours its sensitivity is for."""
        return Neighbouring(self.adjacency, self.unit)

    @property
    def noise_multiplier(self) -> float:
        """Noise scale over sensitivity: all that the privacy of continuous noise depends on."""
        return self.noise_scale / self.sensitivity

    def body(self) -> dict[str, Any]:
        """Its kind and fields as JSON values."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"kind": self.kind, **values, "adjacency": str(self.adjacency), "unit": str(self.unit)}


@dataclass(frozen=True)
class Gaussian(Mechanism):
    """Normal noise with standard deviation `noise_scale` on every coordinate; L2 sensitivity."""

    kind: ClassVar[str] = "gaussian"


@dataclass(frozen=True)
class Laplace(Mechanism):
    """Laplace noise of scale `noise_scale` (density ∝ exp(−|x|/b)) on every coordinate; L1 sensitivity."""

    kind: ClassVar[str] = "laplace"


@dataclass(frozen=True)
class OnGrid(Mechanism):
    """Integer noise on values that lie on a grid; `noise_scale` and `sensitivity` are counted in grid steps.

    `step` is the spacing of the grid in the data's own units; it is kept for the record and changes no bound.
    """

    sensitivity: int = 1
    step: float = 1.0

    def __post_init__(self) -> None:
        """Check and normalise; the sensitivity is a whole number of steps."""
        steps = require_finite("sensitivity", self.sensitivity)
        if not steps.is_integer():
            remedy = "Put the clipping bounds on the grid, or round the sensitivity up to the next whole step."
            raise InputError("sensitivity", "must be a whole number of grid steps", self.sensitivity, remedy)
        super().__post_init__()
        set_field(self, "sensitivity", int(steps))
        set_field(self, "step", require_positive("step", self.step))


@dataclass(frozen=True)
class DiscreteGaussian(OnGrid):
    """Noise with mass ∝ exp(−k²/2σ²) on the integers, σ = `noise_scale`; the query moves ONE coordinate.

    Canonne, Kamath, Steinke 2020 (arXiv 2004.00010v5). A query in which one unit moves several coordinates
    is a `Composed` of one such event per coordinate (their noises are independent).
    """

    kind: ClassVar[str] = "discrete-gaussian"


@dataclass(frozen=True)
class DiscreteLaplace(OnGrid):
    """Noise with mass ∝ exp(−|k|/b) on the integers, b = `noise_scale` (geometric); L1 sensitivity."""

    kind: ClassVar[str] = "discrete-laplace"


def event_from_body(data: Mapping[str, Any]) -> Event:
    """The event described by its kind and fields, without a version."""
    if not isinstance(data, Mapping):
        raise InputError("event", "must be a JSON object", data)
    kind = data.get("kind")
    cls = KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise InputError("event kind", f"must be one of {sorted(KINDS)}", kind)
    known = {field.name for field in fields(cls)}
    values = {key: value for key, value in data.items() if key != "kind"}
    for key in values:
        if key not in known:
            raise InputError(f"a field of a {kind} event", f"must be one of {sorted(known)}", key)
    for key in ("event", "alone"):
        if key in values:
            values[key] = event_from_body(values[key])
    if "events" in values:
        if not isinstance(values["events"], list | tuple):
            raise InputError("events", "must be a list", values["events"])
        values["events"] = tuple(event_from_body(part) for part in values["events"])
    optional = {"step", "presence_sensitivity"}
    missing = sorted(known - set(values) - optional)
    if missing:
        raise InputError(f"a {kind} event", f"needs the fields {missing}", sorted(values))
    return cls(**values)


def set_field(event: Event, name: str, value: object) -> None:
    """Set a field while the event is being constructed."""
    object.__setattr__(event, name, value)  # frozen to everybody but its own constructor


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


@dataclass(frozen=True)
class InShares(Event):
    """A release whose noise several clients added to one sum, of which nobody sees the parts.

    `event` is what the release costs against the server with at most `colluders` of the `holders`, in a sum of which
    `smallest` vectors or more open: the shares of honest holders alone carry it. `alone` is what it costs where that
    assumption fails and only the client's own share hides its vector. Every bound is that of `event`; `unshared` gives
    the other one.
    """

    kind: ClassVar[str] = "in-shares"
    event: Event
    alone: Event
    holders: int
    colluders: int
    smallest: int

    def __post_init__(self) -> None:
        """Check both events and the numbers of the cohort."""
        for part in (self.event, self.alone):
            _require_event(part)
        common_neighbouring((self.event.neighbouring, self.alone.neighbouring))
        for name in ("holders", "colluders", "smallest"):
            set_field(self, name, _require_count(name, getattr(self, name)))
        if not self.colluders < self.smallest <= self.holders:
            rule = f"must be above the colluders, {self.colluders}, and at most the holders, {self.holders}"
            raise InputError("smallest", rule, self.smallest)

    @property
    def neighbouring(self) -> Neighbouring | None:
        """The neighbours of the release."""
        return self.event.neighbouring

    def body(self) -> dict[str, Any]:
        """Its kind and fields as JSON values."""
        cohort = {"holders": self.holders, "colluders": self.colluders, "smallest": self.smallest}
        return {"kind": self.kind, "event": self.event.body(), "alone": self.alone.body(), **cohort}


@lru_cache(maxsize=4096)
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
        elif isinstance(current, InShares):
            stack.append((current.event, times))
        else:
            parts[current] += times
    return parts


def unshared(event: Event) -> Event:
    """The same releases where no assumption holds: of noise in shares each client has only its own."""
    if isinstance(event, Composed):
        return Composed(tuple(unshared(part) for part in event.events))
    if isinstance(event, Repeated):
        return Repeated(unshared(event.event), event.count)
    return event.alone if isinstance(event, InShares) else event


def _most_repeats(event: Event) -> int:
    """The largest number of times that any part of an event happens by nested repetitions."""
    if isinstance(event, Repeated):
        return event.count * _most_repeats(event.event)
    if isinstance(event, Composed):
        return max((_most_repeats(part) for part in event.events), default=1)
    if isinstance(event, InShares):
        return max(_most_repeats(event.event), _most_repeats(event.alone))
    return 1


def _require_event(value: object) -> None:
    if not isinstance(value, Event):
        remedy = "Events of dp-accounting go through accountant.interop.from_dp_event first."
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


def map_parts(event: Event, change: Callable[[Event], Event]) -> Event:
    """The same event with every indivisible release in it changed."""
    if isinstance(event, Composed):
        return Composed(tuple(map_parts(part, change) for part in event.events))
    if isinstance(event, Repeated):
        return Repeated(map_parts(event.event, change), event.count)
    if isinstance(event, InShares):
        return replace(event, event=map_parts(event.event, change), alone=map_parts(event.alone, change))
    return change(event)


def as_replaced(event: Event) -> Event:
    """The same release under replace-one.

    A replacement is a removal followed by an addition, so it moves the query by at most twice the
    add-or-remove sensitivity; and a record's presence moves it by that sensitivity itself.
    """
    return map_parts(event, _replaced)


def _replaced(part: Event) -> Event:
    if isinstance(part, Nothing | NotPrivate):
        return part
    if isinstance(part, Mechanism):
        if part.adjacency is Adjacency.REPLACE_ONE:
            return part
        return replace(part, sensitivity=2 * part.sensitivity, adjacency=Adjacency.REPLACE_ONE)
    if isinstance(part, PoissonSampled):
        inner = part.event
        if inner.adjacency is Adjacency.REPLACE_ONE:
            return part
        doubled = replace(inner, sensitivity=2 * inner.sensitivity, adjacency=Adjacency.REPLACE_ONE)
        return PoissonSampled(part.rate, doubled, float(inner.sensitivity))
    raise InputError("event", "must be an add-or-remove release", part)


def all_replaced(counts: Mapping[Event, int]) -> Counter[Event]:
    """Counted releases under replace-one."""
    total: Counter[Event] = Counter()
    for event, count in counts.items():
        total[as_replaced(event)] += count
    return total
