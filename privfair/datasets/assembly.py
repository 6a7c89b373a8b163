"""From encoded rows to a federation: the split into training and test records, and the clients."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accountant.errors import InputError
from privfair.datasets.columns import Column, Encoder, encode_all
from privfair.datasets.records import ClientData, Federation, Records, Schema, SensitiveAttribute
from privfair.datasets.table import Table


def held_out(
    contents: Sequence[bytes], *, seed: int, test_fraction: float, together: bool = False
) -> NDArray[np.bool_]:
    """For every record, whether it is a test record; one record more moves no other record.

    A record is tested iff H(content, occurrence) < test_fraction · 2⁶⁴, where H is BLAKE2b keyed with the seed and
    the occurrence numbers identical records 0, 1, 2, … (they are interchangeable, so their order does not matter).
    With `together` there is no occurrence number: equal contents, for example ids of persons, stay on one side.
    """
    key = blake2b(str(seed).encode(), digest_size=32).digest()
    threshold = int(test_fraction * 2**64)
    seen: defaultdict[bytes, int] = defaultdict(int)
    sides = np.empty(len(contents), dtype=np.bool_)
    for row, content in enumerate(contents):
        occurrence = 0 if together else seen[content]
        seen[content] = occurrence + 1
        hashed = blake2b(content + occurrence.to_bytes(8, "big"), digest_size=8, key=key, person=b"privfair split")
        sides[row] = int.from_bytes(hashed.digest(), "big") < threshold
    return sides


NAMES_SHOWN = 5


def assemble(
    name: str,
    schema: Schema,
    records: Records,
    *,
    client_of: Sequence[str],
    tested: NDArray[np.bool_],
    encoder: Encoder,
    order: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Federation:
    """The federation in which row i belongs to `client_of[i]` and is a test record iff `tested[i]`.

    Clients come in the given order, and in the order of their names where none is given. Clients of `order` without
    records are dropped.
    """
    if len(records) == 0:
        raise InputError(f"dataset {name}", "must have at least one record", 0, "See what the options leave out.")
    place = {client: position for position, client in enumerate(order)}
    names = sorted(set(client_of), key=lambda client: (place.get(client, len(place)), client))
    code = {client: position for position, client in enumerate(names)}
    codes = np.array([code[client] for client in client_of], dtype=np.int64)
    by_client = np.argsort(codes, kind="stable")
    starts = np.searchsorted(codes[by_client], np.arange(1, len(names)))
    clients = tuple(
        ClientData(client, records.take(at[~tested[at]]), records.take(at[tested[at]]))
        for client, at in zip(names, np.split(by_client, starts), strict=True)
    )
    empty = [
        *_empty_note("training", [client.name for client in clients if len(client.train) == 0], len(clients)),
        *_empty_note("test", [client.name for client in clients if len(client.test) == 0], len(clients)),
    ]
    return Federation(name, schema, clients, (*notes, *empty), encoder)


def _empty_note(kind: str, names: list[str], total: int) -> list[str]:
    """A note about clients that have nothing on one side, if there are any."""
    if not names:
        return []
    shown = ", ".join(names[:NAMES_SHOWN]) + (", …" if len(names) > NAMES_SHOWN else "")
    return [f"{len(names)} of {total} clients have no {kind} records: {shown}."]


def assemble_table(
    name: str,
    table: Table,
    *,
    columns: Sequence[Column],
    label: str,
    labels: ArrayLike,
    sensitive: Sequence[tuple[SensitiveAttribute, ArrayLike]],
    client_of: Sequence[str],
    order: Sequence[str] = (),
    seed: int,
    test_fraction: float,
    notes: Sequence[str] = (),
) -> Federation:
    """The federation of a published table with 0/1 labels, encoded by declared columns and split on the rows' text."""
    features, feature_names, encoding_notes = encode_all(columns, table.column, len(table))
    records = Records(
        features,
        np.asarray(labels, dtype=np.float32),
        np.column_stack([np.asarray(codes, dtype=np.int64) for _, codes in sensitive]),
        np.zeros((len(table), 0), dtype=np.bool_),
    )
    attributes = tuple(attribute for attribute, _ in sensitive)
    return assemble(
        name,
        Schema(feature_names, "binary", label, (0.0, 1.0), attributes),
        records,
        client_of=client_of,
        tested=held_out(table.contents(), seed=seed, test_fraction=test_fraction),
        encoder=Encoder(tuple(columns)),
        order=order,
        notes=(*notes, *encoding_notes),
    )
