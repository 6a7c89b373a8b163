"""The keys of a run, by who may have which."""

from __future__ import annotations

from pathlib import Path

from accountant.errors import InputError
from privfair.config import Config
from privfair.secure_aggregation import ClientKeys, KeyPair, ServerKeys, load_client, load_server


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
