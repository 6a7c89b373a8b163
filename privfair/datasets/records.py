"""Records, the schema that says what they mean, and the federation of clients that hold them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accountant.errors import InputError

if TYPE_CHECKING:
    from privfair.datasets.columns import Encoder


@dataclass(frozen=True, eq=False)
class Records:
    """Rows of data; the arrays are read-only.

    features (n, d); labels (n,): 0 or 1, or a number in the schema's range; groups (n, s): for each sensitive
    attribute the index of the record's value; conditions (n, c): whether the record is in each conditioning set.
    """

    features: NDArray[np.float32]
    labels: NDArray[np.float32]
    groups: NDArray[np.int64]
    conditions: NDArray[np.bool_]

    def __post_init__(self) -> None:
        """Check the shapes and lock the arrays."""
        for name, dtype, dimensions in _ARRAYS:
            given = getattr(self, name)
            try:
                array = _locked(given, dtype)
            except (TypeError, ValueError, OverflowError):
                raise InputError(name, "must be an array of numbers", given) from None
            if array.ndim != dimensions:
                raise InputError(name, f"must have {dimensions} dimension(s)", f"shape {array.shape}")
            if len(array) != len(self.labels):
                raise InputError(name, f"must have one row per label, {len(self.labels)}", len(array))
            object.__setattr__(self, name, array)

    def __len__(self) -> int:
        """How many records there are."""
        return len(self.labels)

    def take(self, indices: ArrayLike) -> Records:
        """The records at these positions, in this order; a boolean mask works too."""
        at = np.asarray(indices)
        if at.dtype == np.bool_:
            at = np.flatnonzero(at)
        elif at.size == 0:
            at = at.astype(np.int64)  # an empty list would otherwise be an array of floats
        taken = [getattr(self, name).take(at, axis=0) for name, _, _ in _ARRAYS]
        for array in taken:
            array.flags.writeable = False  # nobody else has it, so it need not be copied again
        return Records(*taken)

    @staticmethod
    def concatenate(parts: Sequence[Records]) -> Records:
        """All records of the parts, one part after the other."""
        if not parts:
            raise InputError("parts", "must hold at least one set of records", 0)
        return Records(*(np.concatenate([getattr(part, name) for part in parts]) for name, _, _ in _ARRAYS))


_ARRAYS: tuple[tuple[str, Any, int], ...] = (
    ("features", np.float32, 2),
    ("labels", np.float32, 1),
    ("groups", np.int64, 2),
    ("conditions", np.bool_, 2),
)


def _locked(array: Any, dtype: Any) -> NDArray[Any]:
    """A read-only array that nobody else can write to."""
    given = np.asarray(array)
    if given.flags.writeable or given.base is not None or given.dtype != dtype or not given.flags.c_contiguous:
        given = np.array(given, dtype=dtype, order="C")
        given.flags.writeable = False
    return given


@dataclass(frozen=True)
class SensitiveAttribute:
    """An attribute over whose values a model must be fair."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Schema:
    """What the numbers in `Records` mean.

    It is declared before any data are read. `inferred` says that it was taken from the data instead: right for a
    simulation, but then no privacy statement covers what the schema itself reveals about the records. `positive` is the
    value that label 1 stands for, where the owner chose it.
    """

    features: tuple[str, ...]
    task: Literal["binary", "regression"]
    label: str
    label_range: tuple[float, float]
    sensitive: tuple[SensitiveAttribute, ...]
    conditions: tuple[str, ...] = ()
    inferred: bool = False
    positive: str = ""

    def __post_init__(self) -> None:
        """Check what can be checked without data."""
        if self.task not in ("binary", "regression"):
            raise InputError("task", "must be 'binary' or 'regression'", self.task)
        low, high = self.label_range
        if not (np.isfinite(low) and np.isfinite(high) and low < high):
            raise InputError("label_range", "must be two finite numbers, the smaller first", self.label_range)
        if not self.sensitive:
            raise InputError("sensitive", "must name at least one attribute", self.sensitive)
        for attribute in self.sensitive:
            if not attribute.values or len(set(attribute.values)) != len(attribute.values):
                raise InputError(f"values of {attribute.name}", "must be different from each other", attribute.values)

    def check(self, owner: str, records: Records) -> None:
        """Raise if these records do not fit the schema."""
        widths = (
            ("features", len(self.features), records.features),
            ("groups", len(self.sensitive), records.groups),
            ("conditions", len(self.conditions), records.conditions),
        )
        for name, expected, array in widths:
            if array.shape[1] != expected:
                raise InputError(f"{name} of {owner}", f"must have {expected} columns", array.shape[1])
        if len(records) == 0:
            return
        if not np.isfinite(records.features).all():
            raise InputError(f"features of {owner}", "must be finite", "a value that is not")
        for column, attribute in enumerate(self.sensitive):
            codes = records.groups[:, column]
            if codes.min() < 0 or codes.max() >= len(attribute.values):
                rule = f"must be indices of the {len(attribute.values)} values of {attribute.name}"
                raise InputError(f"groups of {owner}", rule, (int(codes.min()), int(codes.max())))
        labels = records.labels
        if self.task == "binary":
            fits = ((labels == 0) | (labels == 1)).all()
        else:
            low, high = (np.float32(bound) for bound in self.label_range)
            fits = ((labels >= low) & (labels <= high)).all()
        if not fits:
            rule = "must be 0 or 1" if self.task == "binary" else f"must be in the range {self.label_range}"
            raise InputError(f"labels of {owner}", rule, (float(labels.min()), float(labels.max())))


@dataclass(frozen=True)
class ClientData:
    """What one data holder has. Either part may be empty."""

    name: str
    train: Records
    test: Records


@dataclass(frozen=True)
class Federation:
    """Clients whose records share one schema; `notes` say what the preprocessing did.

    The `encoder`, where there is one, makes features of further raw rows, as the loader did of these. `loaded`: who
    holds which record follows from the options of a dataset in the registry.
    """

    name: str
    schema: Schema
    clients: tuple[ClientData, ...]
    notes: tuple[str, ...] = ()
    encoder: Encoder | None = None
    loaded: bool = False

    def __post_init__(self) -> None:
        """Check that every client's records fit the schema, and that the encoder does."""
        if not self.clients:
            raise InputError("clients", "must be at least one", 0)
        if len({client.name for client in self.clients}) != len(self.clients):
            raise InputError("clients", "must have different names", [client.name for client in self.clients])
        for client in self.clients:
            self.schema.check(f"{client.name} (train)", client.train)
            self.schema.check(f"{client.name} (test)", client.test)
        if self.encoder is not None and self.encoder.features != self.schema.features:
            rule = f"must give the {len(self.schema.features)} features of the schema"
            other = set(self.encoder.features) ^ set(self.schema.features)
            found = f"{len(self.encoder.features)}, of which {len(other)} differ" if other else "another order"
            raise InputError("encoder", rule, found)

    def pooled_train(self) -> Records:
        """The training records of all clients."""
        return Records.concatenate([client.train for client in self.clients])

    def pooled_test(self) -> Records:
        """The test records of all clients."""
        return Records.concatenate([client.test for client in self.clients])

    def fingerprint(self) -> str:
        """A digest, in hexadecimal, of the schema, the clients' names and all their records, in their order.

        Names of the dataset and of files are not part of it: the same data from elsewhere have the same one.
        """
        arrays = [
            (client.name, [getattr(part, field) for part in (client.train, client.test) for field, _, _ in _ARRAYS])
            for client in self.clients
        ]
        schema = {**asdict(self.schema), "label_range": [float(end) for end in self.schema.label_range]}
        del schema["positive"]  # it follows from the labels
        return fingerprint(schema, arrays)


def fingerprint(description: Mapping[str, Any], clients: Iterable[tuple[str, Sequence[NDArray[Any]]]]) -> str:
    """BLAKE2b with 16 bytes, in hexadecimal, of a description and of the named arrays of every client.

    Every part is preceded by its length, and every array by its type and shape, so that different data never make
    the same bytes; arrays are taken in little-endian order, so that all machines make the same ones.
    """
    hasher = blake2b(digest_size=16, person=b"privfair data")

    def add(part: bytes) -> None:
        hasher.update(len(part).to_bytes(8, "big"))
        hasher.update(part)

    add(json.dumps(description, sort_keys=True).encode())
    for name, arrays in clients:
        add(json.dumps(name).encode())
        for array in arrays:
            portable = np.asarray(array, dtype=array.dtype.newbyteorder("<"))
            add(f"{array.dtype.name} {array.shape}".encode())
            add(portable.tobytes())
    return hasher.hexdigest()
