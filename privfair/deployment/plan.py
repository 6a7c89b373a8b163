"""The plan that server and data holders must share, as each has it in its own configuration."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from accountant.errors import InputError
from privfair.config import Config
from privfair.datasets.records import Schema, SensitiveAttribute
from privfair.terms import Terms
from privfair.versions import ARITHMETIC, installed

SHARED = ("model", "fairness", "federation", "privacy", "aggregation", "run")
OWN = {"privacy.dataset", "privacy.require_budget", "aggregation.keys"}
SHARED_OF_RUN = ("seed", "dtype", "reproducible_noise", "clients")  # the rest of [run] is everybody's own, as is [data]


def shared_plan(config: Config) -> dict[str, Any]:
    """Every key that must be the same everywhere, as section.key -> value; and the versions of what computes.

    Programs of different versions may round a record's score differently, and mean different things by one key.
    """
    tables = config.model_dump(mode="json", by_alias=True)
    found = {f"{section}.{key}": value for section in SHARED for key, value in tables[section].items()}
    own_of_run = {f"run.{key}" for key in tables["run"]} - {f"run.{key}" for key in SHARED_OF_RUN}
    plan = {name: value for name, value in found.items() if name not in OWN | own_of_run}
    versions = installed()
    # "2.4.0+cpu" is 2.4.0: how it was built does not matter here
    same = {f"version of {package}": (versions[package] or "").partition("+")[0] for package in ARITHMETIC}
    return {**plan, "aggregation.scheme": config.scheme, **same}


def differences(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """The keys in which two plans differ, in words."""
    return [
        f"{name} is {_short(theirs.get(name))} there and {_short(mine.get(name))} here"
        for name in sorted({*mine, *theirs})
        if mine.get(name) != theirs.get(name) or (name in mine) != (name in theirs)
    ]


def _short(value: Any) -> str:
    """A value of a plan, cut where it is long: several keys fit into one message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def holders(config: Config) -> tuple[str, ...]:
    """The data holders' names, in their order."""
    names = config.run.clients
    if not names or len(set(names)) != len(names) or not all(names):
        rule = "must name the data holders, each once"
        raise InputError("run.clients", rule, names, 'For example run.clients = ["north", "south"].')
    if config.federation.method == "centralized":
        raise InputError("federation.method", "must have data holders to run on Flower", "centralized")
    return names


def schema_to_json(schema: Schema) -> str:
    """The schema as text: what server and holders must have in common to train one model."""
    return json.dumps(
        {
            "features": schema.features,
            "task": schema.task,
            "label": schema.label,
            "label_range": [float(end) for end in schema.label_range],
            "sensitive": [[attribute.name, attribute.values] for attribute in schema.sensitive],
            "conditions": schema.conditions,
            "inferred": schema.inferred,
        },
        sort_keys=True,
    )


def schema_from_json(text: str) -> Schema:
    """What `schema_to_json` wrote."""
    try:
        data = json.loads(text)
        return Schema(
            features=tuple(str(name) for name in data["features"]),
            task=data["task"],
            label=str(data["label"]),
            label_range=(float(data["label_range"][0]), float(data["label_range"][1])),
            sensitive=tuple(SensitiveAttribute(str(n), tuple(str(v) for v in vs)) for n, vs in data["sensitive"]),
            conditions=tuple(str(name) for name in data["conditions"]),
            inferred=bool(data["inferred"]),
        )
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise InputError("schema", f"must be whole ({type(error).__name__})", f"{len(text)} characters") from None


def terms_to_text(terms: Terms) -> str:
    """The terms as text, always the same for the same terms."""
    return json.dumps(terms.to_json(), sort_keys=True)


def digest(text: str) -> str:
    """Of terms, to name them by."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
