"""What travels between server and data holder, as flat records of numbers, texts and bytes.

hello    ->  here                       once for every node: who are you, and is this your plan?
order    ->  answer                     a request under the agreed terms, with the sums that the holder has not seen
end      ->  ended                      the last sums
anything ->  refused                    with the reason, and a code where the server can help
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from accountant.errors import InputError
from privfair.codec import Codec
from privfair.config import Config
from privfair.datasets.records import Schema
from privfair.federated.messages import Sealed
from privfair.runs.defaults import settle, with_keys
from privfair.runs.keys import identities
from privfair.secure_aggregation import masks
from privfair.util import ARITHMETIC, installed

VERSION = 2
MOST_TEXT = 500  # characters of a reason from elsewhere that are shown and kept
MOST_SUMS = 2**31
Value = int | float | str | bytes | bool | list[int] | list[float] | list[str] | list[bytes] | list[bool]
Envelope = dict[str, Value]

# codes of refusals that the server can do something about
UNKNOWN_RUN, BEHIND, NO_TERMS, FINAL = "unknown-run", "behind", "no-terms", ""


def sealed(kind: str, run: str, **content: Value) -> Envelope:
    """A message of this kind."""
    return {"version": VERSION, "kind": kind, "run": run, **content}


def refusal(reason: str, *, client: str = "", code: str = FINAL, sums: int = 0, **opened: int) -> Envelope:
    """No, and why; `client`: who refuses."""
    about: Envelope = {"version": VERSION, "kind": "refused", "client": client, "reason": reason, "code": code}
    return {**about, "sums": sums, **opened}


def printable(text: object) -> str:
    """A text from elsewhere as it may be logged: cut, and without line breaks, control and escape characters."""
    start = str(text)[: 4 * MOST_TEXT] if isinstance(text, str | int | float) else f"a {type(text).__name__}"
    clean = "".join(letter if letter.isprintable() else " " for letter in start).strip()
    return clean if len(clean) <= MOST_TEXT else f"{clean[: MOST_TEXT - 1]}…"


def text(envelope: Mapping[str, Value], name: str) -> str:
    """A text of a message; `InputError` if it is none."""
    value = envelope.get(name)
    if not isinstance(value, str):
        raise InputError(f"message's {name}", "must be a text", type(value).__name__)
    return value


def number(envelope: Mapping[str, Value], name: str) -> int:
    """A whole number of a message; `InputError` if it is none."""
    value = envelope.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"message's {name}", "must be a whole number", type(value).__name__)
    return value


def opened_sums(envelope: Mapping[str, Value], name: str = "sums") -> int:
    """How many sums (of updates; of features) the sender of a message says it has opened."""
    found = number(envelope, name) if name == "sums" or name in envelope else 0
    if not 0 <= found <= MOST_SUMS:
        raise InputError(f"message's {name}", f"must be between 0 and {MOST_SUMS}", found)
    return found


def byte_parts(envelope: Mapping[str, Value], name: str) -> list[bytes]:
    """A list of bytes of a message; `InputError` if it is none. An empty list may come without a type."""
    value = envelope.get(name)
    if not isinstance(value, list) or not all(isinstance(part, bytes) for part in value):
        raise InputError(f"message's {name}", "must be a list of bytes", type(value).__name__)
    return [part for part in value if isinstance(part, bytes)]


def require_kind(envelope: Mapping[str, Value], *kinds: str) -> str:
    """The kind of a message, if it is of this version and one of these kinds."""
    if envelope.get("version") != VERSION:
        remedy = "Use the same privfair everywhere."
        raise InputError("message", f"must be of version {VERSION}", envelope.get("version"), remedy)
    kind = text(envelope, "kind")
    if kind not in kinds:
        raise InputError("message", f"must be of kind {' or '.join(kinds)}", kind)
    return kind


_sums = Codec[Sealed](Sealed, "sum")


def pack_sums(sums: Sequence[Sealed]) -> dict[str, Value]:
    """Sums as a field of a message."""
    return {"sums": [_sums.encode(one) for one in sums]}


def read_sums(envelope: Mapping[str, Value]) -> list[Sealed]:
    """What `pack_sums` packed."""
    return [_sums.decode(part) for part in byte_parts(envelope, "sums")]


# ---- The plan that server and data holders must share, as each has it in its own configuration.


SHARED = ("model", "fairness", "federation", "privacy", "aggregation", "run")
OWN = {"privacy.dataset", "privacy.require_budget", "aggregation.keys"}
VERSION_OF = "version of "
SHARED_OF_RUN = ("seed", "dtype", "reproducible_noise", "clients")  # the rest of [run] is everybody's own, as is [data]


def shared_plan(config: Config) -> dict[str, Any]:
    """Every key that must be the same everywhere, as section.key -> value; and the versions of what computes.

    Programs of different versions may round a record's score differently, and mean different things by one key.
    """
    tables = config.model_dump(mode="json", by_alias=True)
    found = {f"{section}.{key}": value for section in SHARED for key, value in tables[section].items()}
    found |= {f"{section}.{key}": None for section, key in config.undecided}
    own_of_run = {f"run.{key}" for key in tables["run"]} - {f"run.{key}" for key in SHARED_OF_RUN}
    plan = {name: value for name, value in found.items() if name not in OWN | own_of_run}
    versions = installed()
    # "2.4.0+cpu" is 2.4.0: how it was built does not matter here
    same = {f"{VERSION_OF}{package}": (versions[package] or "").partition("+")[0] for package in ARITHMETIC}
    return {**plan, "aggregation.scheme": config.scheme, **same}


def deployed(config: Config) -> Config:
    """The configuration of a party on a machine of its own, which has no other engine, whatever its file names.

    The stacked engine adds up what is masked in the open; its name must not reach a data holder.
    """
    return config if config.run.engine.startswith("flower") else with_keys(config, {"run.engine": "flower"})


def settled_plan(plan: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """The plan of a server, which sees no schema before it is compared, as it will be when its run is settled."""
    tables: dict[str, dict[str, Any]] = {section: {} for section in SHARED}
    for name, value in plan.items():
        section, _, key = name.partition(".")
        if section in tables and value is not None:
            tables[section][key] = value
    try:
        config = deployed(Config.build(tables))
        settled = settle(config, schema, len(holders(config))).config
    except InputError:  # of another version, or one that no run can have: shown as it is
        return dict(plan)
    known = shared_plan(settled)
    return {name: value if name.startswith(VERSION_OF) else known.get(name, value) for name, value in plan.items()}


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


def masks_of(config: Config, run: str, schema: Schema) -> masks.Federation | None:
    """What everybody knows of the masks of a run: cohort, public keys, run, and a digest of plan and schema.

    None where nothing is masked. Signatures of another plan, or of another run, are worth nothing in this one.
    """
    names = holders(config)
    cohort = masks.cohort_of(config, len(names))
    if cohort is None:
        return None
    plan = json.dumps([shared_plan(config), schema_to_text(schema)], sort_keys=True).encode()
    return masks.Federation(cohort, identities(config, names), run, hashlib.sha256(plan).digest())


_schemas = Codec[Schema](Schema, "schema", what="schema")
schema_from_text = _schemas.from_text


def schema_to_text(schema: Schema) -> str:
    """What server and holders must have in common to train one model: the same text for all of them."""
    low, high = schema.label_range
    return _schemas.to_text(replace(schema, label_range=(float(low), float(high)), positive=""))


def digest(text: str) -> str:
    """Of a release plan's text, to name the plan by."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
