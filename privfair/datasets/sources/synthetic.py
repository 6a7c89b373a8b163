"""The paper's synthetic federation, whose clients disagree and whose best classifier is fair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accountant.errors import InputError
from privfair.datasets.assembly import assemble, held_out
from privfair.datasets.columns import Encoder, Plain
from privfair.datasets.downloads import Dataset
from privfair.datasets.records import Federation, Records, Schema, SensitiveAttribute
from privfair.datasets.table import flag, fraction, whole_number

CLIENTS = 10
MOST_CLIENTS = 100_000
MOST_NUMBERS = 10**8  # of all features of all records: 0.8 GB, of which copies are made


def load(
    *,
    seed: int = 0,
    test_fraction: float = 0.25,
    clients: int = CLIENTS,
    records: int = 200,
    sizes: Sequence[int] | None = None,
    dimensions: int = 10,
    alpha: float = 1.0,
    attribute_as_feature: bool = False,
    balanced: bool = True,
) -> Federation:
    """A federation drawn as in Rychener, Kuhn & Hu (AISTATS 2025), "Synthetic Data" and "Heterogeneity Ablation".

    Client k = 1, …, K draws for each record A with probability 1/2 each and
    X ~ α·N(μ(k, A), I) + (1 − α)·N(μ(k, 1 − A), I), where μ(k, a) is a vector of 1s if k + a is even, of −1s if odd;
    Y = 1 iff the sum of X is above 0. α = 1: opposite clients; α = 1/2: all clients alike. Nothing is scaled.

    Options: `clients` clients of `records` records each, or `sizes`, a list with the number of records of every client
    (the paper's second ablation: [50, 150, 250, 100, 50, 100]); `dimensions` of X; `alpha`; `attribute_as_feature`
    appends A to X (the authors' code does; the paper does not). `balanced`: the records of a client alternate between
    A = 0 and A = 1 and every fourth pair (for a quarter) is tested, so that a right classifier is fair on the test
    records too, up to the rare label that crosses the boundary; otherwise A is a coin and the split a hash, and the
    test records of a perfect classifier show an unfairness of a few hundredths by chance.
    """
    counts = _sizes(clients, records, sizes)
    dimensions = whole_number("dimensions", dimensions, at_least=1, at_most=MOST_NUMBERS)
    if sum(counts) * dimensions > MOST_NUMBERS:
        rule, found = f"must have at most {MOST_NUMBERS:,} numbers in all", sum(counts) * dimensions
        raise InputError("synthetic data", rule, found, "Ask for fewer clients, records or dimensions.")
    alpha = fraction("alpha", alpha, remedy="It is the share of records from the client's own mixture component.")
    with_attribute, alternating = flag("attribute_as_feature", attribute_as_feature), flag("balanced", balanced)
    parts = [
        _draw(np.random.default_rng([seed, k]), k, count, dimensions, alpha, with_attribute, alternating)
        for k, count in enumerate(counts, start=1)
    ]
    pooled = Records.concatenate(parts)
    names = [f"client-{k}" for k in range(1, len(counts) + 1)]
    client_of = np.repeat(names, counts).tolist()
    schema = Schema(
        features=tuple(f"x{i}" for i in range(1, dimensions + 1)) + (("A",) if with_attribute else ()),
        task="binary",
        label="sum of x above 0",
        label_range=(0.0, 1.0),
        sensitive=(SensitiveAttribute("A", ("0", "1")),),
    )
    if alternating:
        tested = np.concatenate([_every_so_often(k, count, test_fraction) for k, count in enumerate(counts)])
    else:
        contents = [row.tobytes() for row in pooled.features[:, :dimensions]]
        tested = held_out(contents, seed=seed, test_fraction=test_fraction)
    encoder = Encoder(tuple(Plain(name) for name in schema.features))
    return assemble("synthetic", schema, pooled, client_of=client_of, tested=tested, encoder=encoder, order=names)


def _sizes(clients: Any, records: Any, sizes: Any) -> list[int]:
    """How many records each client has."""
    if sizes is None:
        count = whole_number("records", records, at_least=1, at_most=MOST_NUMBERS)
        return [count] * whole_number("clients", clients, at_least=1, at_most=MOST_CLIENTS)
    if isinstance(sizes, str) or not isinstance(sizes, Sequence) or not sizes:
        raise InputError("sizes", "must be a list of whole numbers", sizes, "For example [50, 150, 250, 100, 50, 100].")
    if clients not in (CLIENTS, len(sizes)):
        raise InputError("clients", f"must agree with sizes, which has {len(sizes)}", clients, "Give one of the two.")
    return [whole_number("sizes", size, at_least=1, at_most=MOST_NUMBERS) for size in sizes]


def _every_so_often(k: int, count: int, test_fraction: float) -> NDArray[np.bool_]:
    """Which of a client's records are tested: pairs at even distances, begun elsewhere by each client."""
    pair = np.arange(count) // 2 + k
    tested: NDArray[np.bool_] = np.floor((pair + 1) * test_fraction) > np.floor(pair * test_fraction)
    return tested


def _draw(
    rng: np.random.Generator,
    k: int,
    count: int,
    dimensions: int,
    alpha: float,
    with_attribute: bool,
    alternating: bool,
) -> Records:
    """The records of client k."""
    coins = rng.integers(0, 2, size=count)
    attribute = np.arange(count) % 2 if alternating else coins
    own_component = rng.random(count) < alpha
    even = (k + np.where(own_component, attribute, 1 - attribute)) % 2 == 0
    x = np.where(even, 1.0, -1.0)[:, None] + rng.standard_normal((count, dimensions))
    labels = x.sum(axis=1) > 0
    features = np.column_stack([x, attribute]) if with_attribute else x
    return Records(
        features.astype(np.float32),
        labels.astype(np.float32),
        attribute[:, None].astype(np.int64),
        np.zeros((count, 0), dtype=np.bool_),
    )


DATASET = Dataset(
    name="synthetic",
    description="the paper's Gaussian clients; the best classifier is globally fair, and unfair at every client",
    source="drawn on this machine from the seed",
    licence="none needed",
    load=load,
)
