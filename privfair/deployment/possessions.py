"""What a data holder has of its own: its records, and its key."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from accountant.errors import InputError
from privfair.aggregation import ClientKeys, load_client, plain_keys
from privfair.config import Config
from privfair.datasets.records import ClientData, Federation
from privfair.datasets.registry import load as load_dataset


def own_records(config: Config, name: str) -> Federation:
    """The data of one holder: its part of a dataset, or the whole of a file without a client column."""
    data = config.data
    found = load_dataset(data.name, seed=config.run.seed, test_fraction=data.test_fraction, **data.options)
    parts = {client.name: client for client in found.clients}
    if data.name == "csv" and data.options.get("client") is None:
        whole = found.clients[0]
        parts = {name: ClientData(name, whole.train, whole.test)}
    if name not in parts:
        raise InputError("client", "must have records in the data", name)
    return replace(found, clients=(parts[name],))


def own_key(config: Config, *, quantise: bool | None = None) -> ClientKeys:
    """The holder's key; none for the plain scheme, where `quantise` tells whether sums are of integers."""
    if config.scheme == "plain":
        return plain_keys(quantise=config.aggregation.quantise if quantise is None else quantise).client
    keys = load_client(key_path(config, "every data holder its client.key"))
    require_scheme(config, keys.scheme)
    return keys


def key_path(config: Config, whose: str) -> Path:
    """Where the configuration says that the key is; `whose`: who is to be given which, for the remedy."""
    if config.aggregation.keys is None:
        remedy = f"Make a pair with `privfair keys new DIR`, and give {whose}."
        raise InputError("aggregation.keys", f"must be given for {config.scheme}", None, remedy)
    return Path(config.aggregation.keys)


def require_scheme(config: Config, scheme: str) -> None:
    """Nothing, if the key is one of the configured scheme."""
    if scheme != config.scheme:
        raise InputError("aggregation.keys", f"must be of scheme {config.scheme}", scheme)
