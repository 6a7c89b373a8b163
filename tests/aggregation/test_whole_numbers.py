"""Sums of whole numbers: exact, the same under every scheme, and without wrapping."""

from __future__ import annotations

import numpy as np
import pytest

from accountant.errors import InputError
from privfair.secure_aggregation import MODULI, FixedPoint, WholeNumbers, aggregators, new_keys
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
