"""Single releases: noise on a query, nothing at all, or something without noise. Frozen, with JSON in and out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from accountant.errors import InputError, require_finite, require_positive
from accountant.neighbouring import Adjacency, Neighbouring, Unit, as_adjacency, as_unit

JSON_VERSION = 1
KINDS: dict[str, type[Event]] = {}


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
    if "event" in values:
        values["event"] = event_from_body(values["event"])
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
