"""The name and the keys of a run, by who may have which."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from accountant.errors import InputError
from privfair.config import Config
from privfair.datasets.records import Schema
from privfair.fairness.notions import Notion
from privfair.privacy.run_ledger import named_run
from privfair.secure_aggregation import ClientKeys, KeyPair, ServerKeys, load_client, load_server, new_keys
from privfair.secure_aggregation.keys import IDENTITY, load_identity


def client_key(config: Config) -> ClientKeys | None:
    """A data holder's key; None for the plain scheme."""
    if config.scheme == "plain":
        return None
    keys = load_client(_key_path(config, "every data holder its client.key"))
    _require_scheme(config, keys.scheme)
    return keys


def server_key(config: Config) -> ServerKeys | None:
    """The server's key, without the secret one, which it must not have; None for the plain scheme."""
    if config.scheme == "plain":
        return None
    path = _key_path(config, "the server its server.key")
    if path.is_dir() and (path / "client.key").exists():
        remedy = "The server opens nothing: give it server.key alone."
        raise InputError("aggregation.keys", "must be without the secret client.key at the server", str(path), remedy)
    keys = load_server(path)
    _require_scheme(config, keys.scheme)
    return keys


def _key_path(config: Config, whose: str) -> Path:
    """Where the configuration says that the key is; `whose`: who is to be given which, for the remedy."""
    if config.aggregation.keys is None:
        remedy = f"Make a pair with `privfair keys new DIR`, and give {whose}."
        raise InputError("aggregation.keys", f"must be given for {config.scheme}", None, remedy)
    return Path(config.aggregation.keys)


def _require_scheme(config: Config, scheme: str) -> None:
    """Raise if the key is not one of the configured scheme."""
    if scheme != config.scheme:
        raise InputError("aggregation.keys", f"must be of scheme {config.scheme}", scheme)


def key_pair(config: Config, keys: KeyPair | None) -> KeyPair | None:
    """The run's own keys, or those of the folder that the configuration names."""
    if config.scheme == "plain":
        if keys is not None:
            raise InputError("keys", "must not be given for scheme plain", keys.client.scheme)
        return None
    if config.aggregation.keys is not None:
        folder = Path(config.aggregation.keys)
        keys = KeyPair(load_client(folder), load_server(folder))
    if keys is None:
        raise InputError("keys", f"must be given for scheme {config.scheme}", None, "Make some: privfair keys new DIR")
    _require_scheme(config, keys.client.scheme)
    return keys


# ---- Identities: with masks, every data holder signs with its own long-term key, and everybody's plan has all of them.

_NEW_IDENTITY = "Every data holder runs `privfair keys identity DIR` and tells the others its public key."


def identities(config: Config, names: Sequence[str]) -> tuple[bytes, ...]:
    """The data holders' public keys in the order of their names, as the plan has them."""
    known, key = config.aggregation.identities, "aggregation.identities"
    if known is None:
        raise InputError(key, "must have every data holder's public key, for masks", None, _NEW_IDENTITY)
    if set(known) != set(names):
        apart = ", ".join(sorted(set(known) ^ set(names)))
        raise InputError(key, f"must name the data holders {', '.join(names)}", f"a difference in {apart}")
    found: list[bytes] = []
    for name in names:
        try:
            public = bytes.fromhex(known[name])
        except ValueError:
            public = b""
        if len(public) != 32:
            raise InputError(f"{key}.{name}", "must be 64 hexadecimal digits", known[name][:70], _NEW_IDENTITY)
        if public in found:
            other = names[found.index(public)]
            raise InputError(f"{key}.{name}", "must be a key of its own", f"that of {other}", _NEW_IDENTITY)
        found.append(public)
    return tuple(found)


def own_identity(config: Config, name: str) -> Ed25519PrivateKey:
    """A data holder's own signing key, in the folder of its other key; refused unless it is the one of the plan."""
    path = _key_path(config, "every data holder its client.key and an identity.key of its own")
    path = path if path.is_dir() else path.parent
    if not (path / IDENTITY).is_file():
        remedy = f"Make one for {name} alone: privfair keys identity {path}"
        raise InputError("aggregation.keys", f"must have {IDENTITY} beside client.key, for masks", str(path), remedy)
    found = load_identity(path)
    public, known = found.public_key().public_bytes_raw().hex(), config.aggregation.identities or {}
    if public != known.get(name, "").lower():
        whose = next((f"that of {other}" for other, key in known.items() if key.lower() == public), "another key")
        remedy = f"The plan has {known.get(name)} for {name}, and {path / IDENTITY} is {public}."
        raise InputError("aggregation.identities", f"must have the key of {name} that it signs with", whose, remedy)
    return found


def new_name() -> str:
    """A name for a run; how records are divided is added to it in every ledger."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"


@dataclass(frozen=True)
class Credentials:
    """What a run is known by: its name in the ledger, and its keys where it has its own."""

    run: str
    keys: KeyPair | None
    ledger_id: str | None = None  # of the ledger in which it was begun

    @staticmethod
    def new(config: Config, schema: Schema, notion: Notion | None) -> Credentials:
        """For a new run, of a notion of one's own or of a known one."""
        own = config.scheme != "plain" and config.aggregation.keys is None
        return Credentials(named_run(new_name(), config, schema, notion), new_keys(config.scheme) if own else None)
