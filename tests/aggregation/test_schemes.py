"""What every scheme must do, and what each does in its own way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tenseal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accountant.errors import InputError
from privfair.secure_aggregation import KeyPair, TooNoisy, new_keys, plain_keys
from privfair.secure_aggregation import tenseal as seal
from privfair.secure_aggregation.aggregators import SumOfChunks
from privfair.secure_aggregation.ciphertext import (
    Ciphertext,
    Damaged,
    TooMany,
    WrongEncoding,
    WrongKey,
    WrongLength,
    WrongScheme,
)
from privfair.secure_aggregation.tenseal import CKKS as PARAMETERS
from privfair.secure_aggregation.tenseal import SIGMA, UNIT, BfvClient

FEW = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(params=["bfv", "ckks", "plain", "plain-float"])
def keys(request, bfv_keys, ckks_keys) -> KeyPair:
    made = {"bfv": bfv_keys, "ckks": ckks_keys}
    return made.get(request.param) or plain_keys(quantise=request.param == "plain")


def vectors(count, length, seed=0, most=10_000):
    rng = np.random.default_rng(seed)
    return [rng.integers(-most, most + 1, length) for _ in range(count)]


@pytest.mark.parametrize("length", [0, 1, 4096, 4097, 9000])
def test_contract_sum(keys, length):
    a, b, c = vectors(3, length)
    client, server = keys.client, keys.server
    total = server.add(server.add(client.encrypt(a), client.encrypt(b)), client.encrypt(c))
    assert (total.header.length, total.header.additions, len(total.chunks)) == (length, 2, -(-length // 4096))
    opened = client.decrypt(Ciphertext.from_bytes(total.to_bytes()))
    assert len(opened) == length
    assert np.abs(opened - (a + b + c)).max(initial=0) <= 7 * client.noise  # 1e-12 a value
    np.testing.assert_array_equal(opened, client.decrypt(total))


def test_contract_wrong_inputs_are_named(keys):
    client, server = keys.client, keys.server
    good, longer = (client.encrypt(np.arange(n)) for n in (5, 6))
    other = plain_keys(quantise=True) if keys.client.scheme != "plain" else plain_keys(quantise=False)
    with pytest.raises(WrongLength, match="right must have 5 values, as the others; found 6"):
        server.add(good, longer)
    with pytest.raises(WrongScheme, match=f"Ann must be of scheme {client.scheme}; found '{other.client.scheme}'"):
        client.decrypt(other.client.encrypt(np.arange(5)), "Ann")
    with pytest.raises(WrongScheme):
        server.add(good, other.client.encrypt(np.arange(5)))
    broken = Ciphertext(good.header, (good.chunks[0][: len(good.chunks[0]) // 2 + 1],))
    with pytest.raises(Damaged, match="right must"):
        server.add(good, broken)
    with pytest.raises(Damaged, match="Ann must"):
        client.decrypt(broken, "Ann")
    with pytest.raises(InputError, match="vector must have one dimension"):
        client.encrypt(np.zeros((2, 2), dtype=np.int64))


def test_a_refused_contribution_leaves_the_sum_as_it_was(keys):
    a, b = vectors(2, 5000)
    total = SumOfChunks(keys.server)
    total.add(keys.client.encrypt(a))
    before = total.total()
    bad = keys.client.encrypt(b)
    bad = Ciphertext(bad.header, (bad.chunks[0], b"garbage"))
    with pytest.raises(Damaged, match="reply of Bob must"):
        total.add(bad, "reply of Bob")
    assert total.total() == before


@pytest.mark.parametrize("scheme", ["bfv", "ckks"])
def test_the_server_cannot_decrypt(scheme, bfv_keys, ckks_keys):
    keys = {"bfv": bfv_keys, "ckks": ckks_keys}[scheme]
    context = keys.server.context
    assert context.is_public()
    assert not context.has_secret_key()
    assert not context.has_galois_keys()
    assert not context.has_relin_keys()
    loaded = keys.server.load_chunk(keys.client.encrypt(np.arange(4)).chunks[0], 4, "x")
    for attempt in (loaded.decrypt, context.secret_key, context.decryptor):
        with pytest.raises(ValueError, match=r"secret|Secret|decryption"):
            attempt()
    assert not hasattr(keys.server, "decrypt")
    again = context.serialize(save_secret_key=True)  # asking for the secret key gets none
    assert not tenseal.context_from(again).has_secret_key()


@pytest.mark.parametrize("scheme", ["bfv", "ckks"])
def test_another_key_is_named_and_never_gives_numbers(scheme, bfv_keys, ckks_keys):
    keys, other = {"bfv": bfv_keys, "ckks": ckks_keys}[scheme], new_keys(scheme)
    mine, foreign = keys.client.encrypt(np.arange(9)), other.client.encrypt(np.arange(9))
    with pytest.raises(WrongKey, match=f"right must be made under the key {keys.client.key_id[:8]}"):
        keys.server.add(mine, foreign)
    with pytest.raises(WrongKey):
        keys.client.decrypt(foreign)
    forged = Ciphertext(mine.header, foreign.chunks)  # the header lies: the numbers themselves must tell
    with pytest.raises(TooNoisy, match="made under another key"):
        keys.client.decrypt(forged)


@FEW
@given(st.data())
def test_bfv_equals_plain_exactly(bfv_keys, data):
    count, length = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 5000))
    most = (bfv_keys.client.modulus - 1) // 2 // count
    vs = vectors(count, length, data.draw(st.integers(0, 2**32 - 1)), most)
    vs[0][0], vs[-1][-1] = most, -most
    plain = plain_keys(quantise=True)
    answers = []
    for keys in (bfv_keys, plain):
        total = SumOfChunks(keys.server)
        for v in vs:
            total.add(keys.client.encrypt(v))
        answers.append(keys.client.decrypt(total.total()))
    np.testing.assert_array_equal(answers[0], np.sum(vs, axis=0))
    np.testing.assert_array_equal(answers[1], answers[0])


def test_bfv_reaches_both_ends_of_its_modulus(bfv_keys):
    most = (bfv_keys.client.modulus - 1) // 2
    ends = np.array([most, -most, 0, 1, -1])
    np.testing.assert_array_equal(bfv_keys.client.decrypt(bfv_keys.client.encrypt(ends)), ends)
    with pytest.raises(InputError, match=f"vector must stay within ±{most}"):
        bfv_keys.client.encrypt(np.array([most + 1]))
    with pytest.raises(InputError, match=r"must hold integers; found 'float64'\. Use FixedPoint.encode first"):
        bfv_keys.client.encrypt(np.array([0.5]))


def test_bfv_refuses_rather_than_open_what_noise_has_spoilt(bfv_keys):
    """A vector added to itself 2^k times has 2^k times its noise: 17 bits of budget are gone after 17 doublings."""
    client, server = bfv_keys.client, bfv_keys.server
    loaded = server.load_chunk(client.encrypt(np.array([1, -2, 3])).chunks[0], 3, "x")
    opened = 0
    for k in range(1, 25):
        loaded = server.add_chunk(loaded, server.load_chunk(server.dump_chunk(loaded), 3, "x"))
        try:
            found = client.decrypt_chunk(server.dump_chunk(loaded), 3, "sum")
        except TooNoisy as error:
            assert "noise budget of at least 2 bits" in str(error)  # noqa: PT017
            break
        np.testing.assert_array_equal(found, np.array([1, -2, 3]) * 2**k)
        opened = k
    assert 12 <= opened <= 17


def _many(keys, count):
    one = keys.client.encrypt_chunk(np.full(4096, 3))
    total = keys.server.load_chunk(one, 4096, "x")
    for _ in range(count):
        more = keys.server.load_chunk(keys.client.encrypt_chunk(np.full(4096, -2)), 4096, "x")
        total = keys.server.add_chunk(total, more)
    found = keys.client.decrypt_chunk(keys.server.dump_chunk(total), 4096, "x")
    np.testing.assert_array_equal(found, np.full(4096, 3 - 2 * count))


def test_bfv_after_a_thousand_additions(bfv_keys):
    _many(bfv_keys, 1000)


@pytest.mark.slow
def test_bfv_after_the_most_additions_allowed(bfv_keys):
    _many(bfv_keys, BfvClient.max_additions)


def test_too_many_additions_are_refused(bfv_keys):
    good = bfv_keys.client.encrypt(np.arange(3))
    full = Ciphertext(replace(good.header, additions=2**16), good.chunks)
    with pytest.raises(TooMany, match=r"must be within 65536 additions; found 65537\. Sum fewer"):
        bfv_keys.server.add(full, good)
    beyond = Ciphertext(replace(good.header, additions=2**16 + 1), good.chunks)
    with pytest.raises(TooMany, match="at most 65536 additions behind it"):
        bfv_keys.client.decrypt(beyond)


@FEW
@given(st.integers(0, 2**32 - 1), st.integers(1, 8))
def test_ckks_beneath_its_flooding_is_exact(ckks_keys, seed, count):
    client, server = ckks_keys.client, ckks_keys.server
    vs = vectors(count, 4096, seed, most=(client.modulus - 1) // 2 // count)
    total = SumOfChunks(server)
    for v in vs:
        total.add(client.encrypt(v))
    np.testing.assert_array_equal(client._exact(total.total().chunks[0], "x"), np.sum(vs, axis=0))


def test_ckks_is_exact_after_the_most_additions_it_may_see(ckks_keys):
    """Doubling adds the same noise, so 2^10 copies are harder than 1,024 independent contributions."""
    client, server = ckks_keys.client, ckks_keys.server
    values = vectors(1, 4096, most=2**33)[0]
    loaded = server.load_chunk(client.encrypt_chunk(values), 4096, "x")
    for _ in range(10):
        loaded = server.add_chunk(loaded, server.load_chunk(server.dump_chunk(loaded), 4096, "x"))
    np.testing.assert_array_equal(client._exact(server.dump_chunk(loaded), "x"), values * 2**10)


def test_ckks_floods_every_value_it_opens(ckks_keys):
    """Mean 0, deviation σ, new for each ciphertext, the same for the same; tolerances: 5 standard errors, 6e-7 each."""
    client = ckks_keys.client
    zeros, n = np.zeros(4096, dtype=np.int64), 16 * 4096
    chunks = [client.encrypt_chunk(zeros) for _ in range(16)]
    noise = np.array([client.decrypt_chunk(chunk, 4096, "x") for chunk in chunks])
    assert abs(noise.mean()) < 5 * SIGMA / np.sqrt(n)
    assert abs(noise.std() / SIGMA - 1) < 5 / np.sqrt(2 * n)
    assert abs(np.corrcoef(noise[0], noise[1])[0, 1]) < 5 / np.sqrt(4096)
    np.testing.assert_array_equal(client.decrypt_chunk(chunks[0], 4096, "x"), noise[0])
    np.testing.assert_array_equal(client.decrypt_chunk(chunks[0], 100, "x"), noise[0][:100])


def test_ckks_refuses_numbers_that_are_not_integers(ckks_keys):
    """Off the grid by 0.4 of a unit, everything else in order: rounding would show the encryption noise."""
    client = ckks_keys.client
    chunk = seal.encrypt(client._context, PARAMETERS, [(7 + 0.4) * UNIT] * 4096)
    with pytest.raises(TooNoisy, match="sum must decrypt to integers; found 'other values'"):
        client.decrypt_chunk(chunk, 4096, "sum")
    near = seal.encrypt(client._context, PARAMETERS, [(7 + 0.1) * UNIT] * 4096)
    assert client._exact(near, "x").tolist() == [7] * 4096


def test_each_pair_of_ckks_keys_has_a_flooding_secret_of_its_own(ckks_keys):
    secrets = [keys._files[0].parts["flooding"] for keys in (ckks_keys, new_keys("ckks"))]
    assert [len(secret) for secret in secrets] == [32, 32]
    assert secrets[0] != secrets[1]


def test_contract_sums_of_sums_count_every_addition(keys):
    client, server = keys.client, keys.server
    pairs = [server.add(client.encrypt(np.arange(3)), client.encrypt(np.arange(3))) for _ in range(2)]
    assert server.add(*pairs).header.additions == 3


def test_contract_two_codes_are_never_added(keys):
    left, right = (keys.client.encrypt(np.arange(3), encoding=code * 16) for code in "ab")
    with pytest.raises(WrongEncoding, match="right must be coded as the others; found 'bbbbbbbbbbbbbbbb'"):
        keys.server.add(left, right)
