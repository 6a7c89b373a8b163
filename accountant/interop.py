"""Spending done elsewhere: dp-accounting events, Opacus and Flower accountants, read without importing them.

dp-accounting, Opacus and Flower measure noise per clipping norm: σ = multiplier · C where every unit's vector has
norm at most C. Adding or removing a unit then moves the sum by C (sensitivity 1 in multiples of C), replacing
one by 2 C (sensitivity 2), and its presence by C. Every function here applies that convention.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from accountant.errors import InputError, require_finite, require_positive
from accountant.events import (
    Adjacency,
    Composed,
    DiscreteLaplace,
    Event,
    FixedSizeSampled,
    Gaussian,
    Laplace,
    Mechanism,
    Nothing,
    NotPrivate,
    PoissonSampled,
    Repeated,
    Unit,
    as_adjacency,
    as_unit,
    count_parts,
)


def from_dp_event(
    event: object,
    adjacency: Adjacency | str = Adjacency.ADD_OR_REMOVE,
    unit: Unit | str = Unit.RECORD,
) -> Event:
    """The event of this package that a dp-accounting DpEvent stands for, under the given adjacency."""
    return from_dp_json(dp_event_to_json(event), adjacency, unit)


def dp_event_to_json(event: object) -> dict[str, Any]:
    """A JSON object for a dp-accounting DpEvent: its class name and its fields.

    {"class_name": "PoissonSampledDpEvent", "sampling_probability": 0.01,
     "event": {"class_name": "GaussianDpEvent", "noise_multiplier": 1.1}}: what `to_named_tuple()._asdict()`
    of dp-accounting holds, nested objects written out and the module left out.
    """
    attributes = getattr(type(event), "__attrs_attrs__", None)
    if attributes is None or not type(event).__name__.endswith("DpEvent"):
        raise InputError("event", "must be a dp-accounting DpEvent", event)
    values = {attribute.name: getattr(event, attribute.name) for attribute in attributes}
    return {"class_name": type(event).__name__} | {key: _plain(value) for key, value in values.items()}


def from_dp_json(
    data: Mapping[str, Any],
    adjacency: Adjacency | str = Adjacency.ADD_OR_REMOVE,
    unit: Unit | str = Unit.RECORD,
) -> Event:
    """The event a JSON object in the form of `dp_event_to_json` stands for, under the given adjacency."""
    adjacency, unit = as_adjacency(adjacency), as_unit(unit)
    if not isinstance(data, Mapping):
        raise InputError("dp-accounting event", "must be a JSON object", data)
    name = data.get("class_name")
    reader = _READERS.get(name) if isinstance(name, str) else None
    if reader is None:
        remedy = "Account for it with the mechanism it is made of, or enter it as NotPrivate()."
        raise InputError("class_name", f"must be one of {sorted(_READERS)}", name, remedy)
    fields, read = reader
    found = set(data) - {"class_name", "module_name"}
    if found != set(fields):
        raise InputError(f"a {name}", f"must have exactly the fields {sorted(fields)}", sorted(found))
    return read(data, adjacency, unit)


def from_opacus(state: Mapping[str, Any], *, poisson_sampling: bool = True) -> Event:
    """What an Opacus accountant's `state_dict()` has spent: Poisson-sampled Gaussian steps, add-or-remove, record.

    Its history is [(noise_multiplier, sample_rate, steps), …] for the mechanisms rdp, prv and gdp alike.
    With poisson_sampling=False (a loader that shuffles) no amplification by sampling is proved, and the
    steps count as unsampled.
    """
    mechanism = _field(state, "mechanism", "an Opacus state_dict")
    if mechanism not in ("rdp", "prv", "gdp"):
        raise InputError("mechanism", "must be 'rdp', 'prv' or 'gdp'", mechanism)
    history = _field(state, "history", "an Opacus state_dict")
    if not isinstance(history, Sequence) or isinstance(history, str):
        raise InputError("history", "must be a list", history)
    steps = []
    for entry in history:
        if not isinstance(entry, Sequence) or isinstance(entry, str) or len(entry) != 3:
            raise InputError("an entry of history", "must be (noise_multiplier, sample_rate, steps)", entry)
        multiplier, rate, count = entry
        sampled = _sampled_gaussian(multiplier, rate if poisson_sampling else 1.0, Unit.RECORD)
        steps.append(Repeated(sampled, count))
    return Composed(tuple(steps))


def from_flower(state: Mapping[str, Any]) -> Event:
    """What a Flower `RdpAccountant.state_dict()` (schema 1) has spent; the unit is a client.

    Its compositions are Gaussian releases of sums of clipped client updates, sampled as its config says:
    "poisson" and "no-amplification" under add-or-remove, "without-replacement" under replace-one. For the
    last, replacing a client moves the sum by twice the clipping norm, so the cost here is above Flower's.
    """
    version = _field(state, "schema_version", "a Flower state_dict")
    if version != 1 or isinstance(version, bool) or state.get("backend") != "rdp":
        raise InputError("Flower state", "must have schema 1 and backend 'rdp'", (version, state.get("backend")))
    config = _field(state, "config", "a Flower state_dict")
    relation = _field(config, "neighboring_relation", "config")
    sampling = _field(config, "sampling_method", "config")
    known = {"add-or-remove-one": ("poisson", "no-amplification"), "replace-one": ("without-replacement",)}
    if sampling not in known.get(relation, ()):
        raise InputError("sampling_method with neighboring_relation", f"must be of {known}", (sampling, relation))
    parts = []
    for composition in _field(state, "compositions", "a Flower state_dict"):
        release = _field(composition, "event", "a composition")
        multiplier = _field(release, "noise_multiplier", "an event")
        size, population = (_field(release, name, "an event") for name in ("sample_size", "population_size"))
        event: Event
        if sampling == "without-replacement":
            gaussian = Gaussian(multiplier, 2.0, Adjacency.REPLACE_ONE, Unit.CLIENT)
            event = FixedSizeSampled(size, population, gaussian)
        else:
            positive = require_positive("population_size", population)
            rate = math.nextafter(size / positive, 2.0) if sampling == "poisson" else 1.0
            event = _sampled_gaussian(multiplier, min(rate, 1.0), Unit.CLIENT)
        parts.append(Repeated(event, _field(composition, "count", "a composition")))
    return Composed(tuple(parts))


def _sampled_gaussian(multiplier: float, rate: float, unit: Unit) -> Event:
    if require_finite("noise_multiplier", multiplier) == 0:
        return NotPrivate()
    gaussian = Gaussian(multiplier, 1.0, Adjacency.ADD_OR_REMOVE, unit)
    return gaussian if rate == 1.0 else PoissonSampled(rate, gaussian)


def _times(adjacency: Adjacency) -> int:
    """How many clipping norms a neighbour moves the sum."""
    return 2 if adjacency is Adjacency.REPLACE_ONE else 1


def _field(data: Mapping[str, Any], name: str, where: str) -> Any:
    if not isinstance(data, Mapping) or name not in data:
        raise InputError(where, f"must be an object with the field {name!r}", data)
    return data[name]


def _plain(value: object) -> object:
    if hasattr(type(value), "__attrs_attrs__"):
        return dp_event_to_json(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


Read = Callable[[Mapping[str, Any], Adjacency, Unit], Event]


def _noise(kind: type[Mechanism]) -> Read:
    def read(data: Mapping[str, Any], adjacency: Adjacency, unit: Unit) -> Event:
        multiplier = require_finite("noise_multiplier", data["noise_multiplier"])
        return kind(multiplier, _times(adjacency), adjacency, unit) if multiplier else NotPrivate()

    return read


def _discrete_laplace(data: Mapping[str, Any], adjacency: Adjacency, unit: Unit) -> Event:
    decay = require_finite("noise_parameter", data["noise_parameter"])
    if decay == 0:
        return NotPrivate()  # dp-accounting's reading of it
    return DiscreteLaplace(1.0 / decay, data["sensitivity"] * _times(adjacency), adjacency, unit)


def _poisson(data: Mapping[str, Any], adjacency: Adjacency, unit: Unit) -> Event:
    rate = require_finite("sampling_probability", data["sampling_probability"])
    inner = _one_mechanism(from_dp_json(data["event"], adjacency, unit))
    if rate == 0 or isinstance(inner, Nothing):
        return Nothing()
    if isinstance(inner, NotPrivate):
        return inner
    presence = inner.sensitivity / 2 if adjacency is Adjacency.REPLACE_ONE else None
    return PoissonSampled(rate, inner, presence)


def _without_replacement(data: Mapping[str, Any], adjacency: Adjacency, unit: Unit) -> Event:
    inner = _one_mechanism(from_dp_json(data["event"], adjacency, unit))
    if data["sample_size"] == 0 or isinstance(inner, Nothing):
        return Nothing()
    if isinstance(inner, NotPrivate):
        return inner
    return FixedSizeSampled(data["sample_size"], data["source_dataset_size"], inner)


def _one_mechanism(event: Event) -> Mechanism | Nothing | NotPrivate:
    """What was run on the sample, as one mechanism; several Gaussians on it are one with Σ 1/z² of precision."""
    parts = {part: count for part, count in count_parts(event).items() if not isinstance(part, Nothing)}
    if not parts:
        return Nothing()
    if NotPrivate() in parts:
        return NotPrivate()
    first, count = next(iter(parts.items()))
    if len(parts) == 1 and count == 1 and isinstance(first, Mechanism):
        return first
    precision, sensitivity = 0.0, 1.0
    for part, count in parts.items():
        if not isinstance(part, Gaussian):
            raise InputError("several queries on one sample", "must all be Gaussian", part)
        precision += count / part.noise_scale**2
        sensitivity = part.sensitivity  # the same for all: it comes from the adjacency
        adjacency, unit = part.adjacency, part.unit
    return Gaussian(math.nextafter(precision**-0.5, 0.0), sensitivity, adjacency, unit)


def _repeated(data: Mapping[str, Any], adjacency: Adjacency, unit: Unit) -> Event:
    return Repeated(from_dp_json(data["event"], adjacency, unit), data["count"]) if data["count"] else Nothing()


def _composed(data: Mapping[str, Any], adjacency: Adjacency, unit: Unit) -> Event:
    if not isinstance(data["events"], list | tuple):
        raise InputError("events", "must be a list", data["events"])
    return Composed(tuple(from_dp_json(part, adjacency, unit) for part in data["events"]))


_READERS: dict[str, tuple[tuple[str, ...], Read]] = {
    "NoOpDpEvent": ((), lambda *_: Nothing()),
    "NonPrivateDpEvent": ((), lambda *_: NotPrivate()),
    "GaussianDpEvent": (("noise_multiplier",), _noise(Gaussian)),
    "LaplaceDpEvent": (("noise_multiplier",), _noise(Laplace)),
    "DiscreteLaplaceDpEvent": (("noise_parameter", "sensitivity"), _discrete_laplace),
    "PoissonSampledDpEvent": (("sampling_probability", "event"), _poisson),
    "SampledWithoutReplacementDpEvent": (("source_dataset_size", "sample_size", "event"), _without_replacement),
    "SelfComposedDpEvent": (("event", "count"), _repeated),
    "ComposedDpEvent": (("events",), _composed),
}
