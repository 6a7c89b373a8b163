"""Sums of whole numbers: exact, the same under every scheme, and without wrapping."""

from __future__ import annotations

import numpy as np
import pytest

from accountant.errors import InputError
from privfair.secure_aggregation import MODULI, FixedPoint, WholeNumbers, aggregators, new_keys
from privfair.secure_aggregation.base import Joined
from privfair.secure_aggregation.ciphertext import TooMany, WrongEncoding


@pytest.mark.parametrize("scheme", ["bfv", "plain"])
def test_sums_are_exact(scheme: str) -> None:
    code = WholeNumbers(3, MODULI[scheme])
    client, server = aggregators(scheme, new_keys(scheme) if scheme == "bfv" else None, fixed_point=code)
    rng = np.random.default_rng(0)
    vectors = rng.integers(-code.most, code.most + 1, (3, 5000)).astype(float)
    total = server.add([client.contribute(v, 1.0, client=k) for k, v in enumerate(vectors)])
    np.testing.assert_array_equal(client.open(total), vectors.sum(axis=0))


def test_what_is_too_large_is_cut_so_that_the_largest_sum_does_not_wrap() -> None:
    code = WholeNumbers(4, MODULI["bfv"])
    client, server = aggregators("plain", None, fixed_point=code)
    values = np.array([1e18, -1e18, np.inf, -np.inf, np.nan, 2.4])
    total = client.open(server.add([client.contribute(values, 1.0)] * 4))
    np.testing.assert_array_equal(total / 4, [code.most, -code.most, code.most, -code.most, 0, 2])
    assert 4 * code.most <= (MODULI["bfv"] - 1) // 2


def test_other_codes_and_more_contributions_are_refused() -> None:
    code = WholeNumbers(2, MODULI["bfv"])
    client, server = aggregators("plain", None, fixed_point=code)
    message = client.contribute(np.ones(2), 1.0)
    with pytest.raises(TooMany):
        server.add([message] * 3)
    other, _ = aggregators("plain", None, fixed_point=FixedPoint(1.0, 2.0, 2, MODULI["bfv"]))
    with pytest.raises(WrongEncoding):
        server.add([message, other.contribute(np.ones(2), 1.0)])
    with pytest.raises(InputError, match=r"weight must be 1 for whole numbers; found 0.5"):
        client.contribute(np.ones(2), 0.5)
    with pytest.raises(InputError, match="contributors must be between 1 and 536846336; found 0"):
        WholeNumbers(0, MODULI["bfv"])


@pytest.mark.parametrize("first", [WholeNumbers(3, MODULI["bfv"]), FixedPoint(1.0, 1.0, 3, MODULI["bfv"])])
def test_joined_vectors_are_summed_as_each_by_itself(first: WholeNumbers | FixedPoint) -> None:
    """The weight is of the first half alone; the second half has whole numbers."""
    last, rng = WholeNumbers(3, MODULI["bfv"]), np.random.default_rng(0)
    weights = [1.0] * 3 if isinstance(first, WholeNumbers) else [0.2, 0.3, 0.5]
    changes, features = rng.uniform(-1, 1, (3, 40)), rng.integers(-500, 500, (3, 7)).astype(float)
    if isinstance(first, WholeNumbers):
        changes = np.rint(1e6 * changes)
    totals = []
    for code, rows, ws in ((first, changes, weights), (last, features, [1.0] * 3)):
        client, server = aggregators("plain", None, fixed_point=code)
        totals.append(client.open(server.add([client.contribute(v, w) for v, w in zip(rows, ws, strict=True)])))
    client, server = aggregators("plain", None, fixed_point=Joined(first, last, 7))
    both = np.concatenate([changes, features], axis=1)
    total = client.open(server.add([client.contribute(v, w) for v, w in zip(both, weights, strict=True)]))
    np.testing.assert_array_equal(total, np.concatenate(totals))


def test_joined_codes_differ_where_a_half_does() -> None:
    one, other = WholeNumbers(3, MODULI["bfv"]), FixedPoint(1.0, 1.0, 3, MODULI["bfv"])
    codes = [
        Joined(one, one, 7),
        Joined(other, one, 7),
        Joined(one, one, 8),
        Joined(FixedPoint(2.0, 1.0, 3, one.modulus), one, 7),
    ]
    assert len({code.fingerprint for code in (*codes, one, other)}) == 6
    with pytest.raises(InputError, match="joined vectors must have one modulus"):
        Joined(one, WholeNumbers(4, one.modulus), 7)
    with pytest.raises(InputError, match="joined vectors must have more than 7 values"):
        codes[0].encode(np.zeros(7), 1.0)
