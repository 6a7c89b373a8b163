"""One interface for every scheme, as round code uses it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accountant.errors import InputError
from privfair.secure_aggregation import (
    MODULI,
    ClientAggregator,
    FixedPoint,
    ServerAggregator,
    aggregators,
    load_client,
    load_server,
    new_keys,
)
from privfair.secure_aggregation.ciphertext import Damaged, TooMany, WrongEncoding, WrongKey, WrongLength, WrongScheme

FEW = settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def code(scheme, **change):
    return FixedPoint(**({"range": 2.0, "weight_sum": 1.0, "contributors": 4, "modulus": MODULI[scheme]} | change))


@pytest.fixture(params=["bfv", "ckks", "plain", "float"])
def pair(request, bfv_keys, ckks_keys):
    scheme = "plain" if request.param == "float" else request.param
    keys = {"bfv": bfv_keys, "ckks": ckks_keys}.get(scheme)
    return aggregators(scheme, keys, fixed_point=None if request.param == "float" else code(scheme))


def test_contract_weighted_sum(pair):
    client, server = pair
    rng = np.random.default_rng(0)
    values = [rng.uniform(-1.9, 1.9, 5000) for _ in range(4)]
    weights = [0.1, 0.2, 0.3, 0.4]
    messages = [client.contribute(v, w, client=k) for k, (v, w) in enumerate(zip(values, weights, strict=True))]
    assert len({type(m) for m in messages}) == 1
    total = server.add(iter(messages), names=["a", "b", "c", "d"])
    opened = client.open(total)
    exact = sum(w * v for v, w in zip(values, weights, strict=True))
    rounding = client._coded.fixed_point.max_error if client._coded.fixed_point else 0
    assert opened.dtype == np.float64
    # 1e-14: float64 itself. 7 deviations of the flooding noise: 1e-8 for all values together.
    assert np.abs(opened - exact).max() <= rounding + 7 * client.noise + 1e-14
    np.testing.assert_array_equal(client.open(total), opened)  # every client ends with the same model


def test_contract_one_contribution_and_none(pair):
    client, server = pair
    np.testing.assert_allclose(client.open(server.add([client.contribute(np.ones(3), 1.0)])), 1.0, atol=1e-3)
    with pytest.raises(InputError, match=r"contributions must be at least one; found 0\. No client has sent"):
        server.add([])


def test_contract_bad_contributions_name_their_sender(pair):
    client, server = pair
    good = client.contribute(np.ones(5), 0.5)
    for bad, kind in (
        (good[:-3], Damaged),
        (good[:200] + bytes([good[200] ^ 4]) + good[201:] if len(good) > 201 else good[:-1], Damaged),
        (b"", Damaged),
        (client.contribute(np.ones(6), 0.5, client=1), WrongLength),
    ):
        with pytest.raises(kind, match="contribution of Bob must"):
            server.add([good, bad], names=["Ann", "Bob"])
    with pytest.raises(Damaged, match="sum of round 3 must"):
        client.open(good[:-1], "sum of round 3")
    with pytest.raises(InputError, match="names must be as many as contributions"):
        server.add([good, good], names=["Ann"])
    with pytest.raises(InputError, match="names must be as many as contributions"):
        server.add([good], names=["Ann", "Bob"])


def test_contract_a_contribution_can_be_checked_before_it_is_added(pair):
    client, server = pair
    good = client.contribute(np.ones(5), 0.5)
    server.check(good, 5, "reply of Bob")
    with pytest.raises(WrongLength, match="reply of Bob must have 6 values; found 5"):
        server.check(good, 6, "reply of Bob")
    with pytest.raises(Damaged, match="reply of Bob must be whole"):
        server.check(good[:-1], 5, "reply of Bob")


def test_contract_values_never_raise_and_never_change_the_form(pair):
    client, server = pair
    cases = enumerate(((0.0, 0.5), (np.nan, 0), (np.inf, 0), (-np.inf, 0.1)))
    sent = [client.contribute(np.full(10, v), w, client=k) for k, (v, w) in cases]
    assert len(client.open(server.add(sent))) == 10
    sizes = [len(message) for message in sent]
    # TenSEAL compresses: the length of a ciphertext varies a little, by chance and not by value
    assert max(sizes) - min(sizes) <= 0.01 * max(sizes)


@FEW
@given(st.data())
def test_bfv_and_quantised_plain_are_equal_bit_for_bit(bfv_keys, data):
    count, length = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4200))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    weights = rng.dirichlet(np.ones(count))
    values = [rng.normal(0, 2, length) for _ in range(count)]
    values[0][0] = data.draw(st.sampled_from([np.nan, np.inf, -np.inf, 0.0]))
    shared = code("bfv", contributors=count)
    found = []
    for scheme, keys in (("bfv", bfv_keys), ("plain", None)):
        client, server = aggregators(scheme, keys, fixed_point=shared)
        pairs = enumerate(zip(values, weights, strict=True))
        total = server.add(client.contribute(v, w, client=k) for k, (v, w) in pairs)
        found.append(client.open(total))
    np.testing.assert_array_equal(found[0], found[1])
    clipped = [np.clip(np.nan_to_num(v, nan=0, posinf=2, neginf=-2), -2, 2) for v in values]
    exact = np.sum([w * v for v, w in zip(clipped, weights, strict=True)], axis=0)
    assert np.abs(found[0] - exact).max() <= shared.max_error + 1e-14


def test_more_contributions_or_weight_than_the_code_has_room_for(pair):
    client, server = pair
    if client._coded.fixed_point is None:
        return  # floats have room
    ones = [client.contribute(np.ones(3), 0.2, client=k) for k in range(5)]
    with pytest.raises(TooMany, match="sum of the contributions must sum at most 4 contributions; found 5"):
        server.add(ones)
    heavy = [client.contribute(np.ones(3), 0.6, client=k) for k in range(2)]
    with pytest.raises(TooMany, match="must have weights that sum to at most 1"):
        server.add(heavy)


def test_weights_that_sum_to_one_up_to_rounding_are_fine():
    client, server = aggregators("plain", None, fixed_point=code("plain", contributors=10))
    weights = [0.1] * 3 + [0.7 + 1e-15]
    assert sum(weights) > 1
    server.add([client.contribute(np.full(2, 2.0), w) for w in weights])


def test_another_code_scheme_or_key_is_named(bfv_keys):
    client, server = aggregators("bfv", bfv_keys, fixed_point=code("bfv"))
    stranger, _ = aggregators("bfv", bfv_keys, fixed_point=code("bfv", range=3.0))
    with pytest.raises(WrongEncoding, match=r"Ann must be coded as .*the same range"):
        server.add([stranger.contribute(np.ones(2), 0.5)], names=["Ann"])
    with pytest.raises(WrongEncoding):
        client.open(stranger.contribute(np.ones(2), 0.5))
    plain, _ = aggregators("plain", None, fixed_point=code("plain"))
    with pytest.raises(WrongScheme, match="Ann must be of scheme bfv; found 'plain'"):
        server.add([plain.contribute(np.ones(2), 0.5)], names=["Ann"])
    other, _ = aggregators("bfv", new_keys("bfv"), fixed_point=code("bfv"))
    with pytest.raises(WrongKey, match=r"Ann must be made under the key .*the same client\.key"):
        server.add([other.contribute(np.ones(2), 0.5)], names=["Ann"])


def test_the_server_is_built_from_the_public_half(bfv_keys, tmp_path):
    bfv_keys.save(tmp_path / "keys")
    (tmp_path / "keys" / "client.key").rename(tmp_path / "client.key")
    server = ServerAggregator(load_server(tmp_path / "keys"), code("bfv"))
    client = ClientAggregator(load_client(tmp_path / "client.key"), code("bfv"))
    opened = client.open(server.add([client.contribute(np.ones(2), 0.5, client=k) for k in range(2)]))
    np.testing.assert_allclose(opened, 1, atol=code("bfv").max_error)


@pytest.mark.parametrize(
    ("scheme", "keys", "fixed", "text"),
    [
        ("rot13", None, None, "scheme must be one of bfv, ckks, plain; found 'rot13'"),
        ("bfv", None, "bfv", "keys must be given for scheme bfv.*privfair keys new"),
        ("ckks", "bfv", "ckks", "keys must be of scheme ckks; found 'bfv'"),
        ("plain", "bfv", "bfv", "keys must not be given for scheme plain"),
        ("bfv", "bfv", None, "fixed_point must be given unless the scheme is plain float64"),
        ("bfv", "bfv", "many", r"fixed_point.contributors must be at most 65537 for bfv; found 65538"),
        ("bfv", "bfv", "ckks", "fixed_point.modulus must be at most 1073692673 for bfv"),
    ],
)
def test_what_does_not_go_together(scheme, keys, fixed, text, bfv_keys):
    codes = {None: None, "bfv": code("bfv"), "ckks": code("ckks"), "many": code("bfv", contributors=2**16 + 2)}
    with pytest.raises(InputError, match=text):
        aggregators(scheme, bfv_keys if keys else None, fixed_point=codes[fixed])


def test_importing_the_package_does_not_import_tenseal():
    program = "import sys, privfair.secure_aggregation; print('tenseal' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "False"


def test_without_tenseal_the_error_tells_what_to_do():
    program = (
        "import sys; sys.modules['tenseal'] = None\n"
        "from privfair.secure_aggregation import aggregators, new_keys\n"
        "aggregators('plain', None, fixed_point=None)\n"
        "try: new_keys('bfv')\n"
        "except ValueError as error: print(error)\n"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "needs the package tenseal unless it is plain" in found
    assert "pip install tenseal" in found
