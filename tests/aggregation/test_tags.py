"""A server that does not keep to the protocol: no sum but the one it claims to be is opened."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from privfair.secure_aggregation import (
    MODULI,
    FixedPoint,
    Forged,
    KeyPair,
    TooNoisy,
    WholeNumbers,
    aggregators,
    load_client,
)
from privfair.secure_aggregation import tenseal as seal
from privfair.secure_aggregation.ciphertext import (
    BadCiphertext,
    Ciphertext,
    Contributor,
    Damaged,
    Tagging,
    TagKey,
    _inner,
    require_resumable,
)
from privfair.secure_aggregation.tenseal import BFV, CKKS, UNIT

FEW = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SIZE = 5000  # two chunks
RUN = {"run": "20260101-000000-00000000", "channel": "updates"}


@pytest.fixture(params=["bfv", "ckks"])
def keys(request, bfv_keys, ckks_keys) -> KeyPair:
    return {"bfv": bfv_keys, "ckks": ckks_keys}[request.param]


@pytest.fixture
def pair(keys):
    code = WholeNumbers(8, MODULI[keys.client.scheme])
    return aggregators(keys.client.scheme, keys, fixed_point=code, **RUN)


def numbers(seed, size=SIZE):
    return np.random.default_rng(seed).integers(-1000, 1001, size).astype(float)


def sent(client, count, *, number=1, round_number=0, size=SIZE):
    return [
        client.contribute(numbers(k, size), 1.0, client=k, number=number, round_number=round_number)
        for k in range(count)
    ]


def parsed(message):
    return Ciphertext.from_bytes(message)


def added(server, *messages):
    """The chunks of a sum, whatever its parts: what the server's own code would refuse to add, too."""
    total = None
    for message in messages:
        loaded = [server.keys.load_chunk(chunk, 1, "x") for chunk in parsed(message).chunks]
        total = loaded if total is None else [server.keys.add_chunk(a, b) for a, b in zip(total, loaded, strict=True)]
    return tuple(server.keys.dump_chunk(chunk) for chunk in total or [])


def claimed(honest, chunks):
    """The honest message's header, over other chunks, with checksums that are right."""
    return Ciphertext(parsed(honest).header, tuple(chunks)).to_bytes()


def refuses(client, message, *, number=1, least=1):
    with pytest.raises(Forged, match="sum must be the sum of the contributions that it names"):
        client.open(message, number=number, least=least)


def test_the_honest_sum_opens_exactly(pair):
    client, server = pair
    opened = client.open(server.add(sent(client, 3)), number=1, least=3)
    exact = sum(numbers(k) for k in range(3))
    assert np.abs(opened - exact).max() <= 7 * client.noise
    if not client.noise:
        np.testing.assert_array_equal(opened, exact)


def test_a_single_contribution_is_not_opened_as_several(pair):
    client, server = pair
    messages = sent(client, 3)
    refuses(client, claimed(server.add(messages), parsed(messages[0]).chunks), least=3)
    header = parsed(messages[0]).header
    strangers = tuple(Contributor.new(k) for k in (1, 2))
    header = replace(header, additions=2, contributors=header.contributors + strangers)
    refuses(client, Ciphertext(header, parsed(messages[0]).chunks).to_bytes(), least=3)


def test_a_header_that_claims_more_than_it_names_is_refused(pair):
    client, _ = pair
    one = parsed(sent(client, 1)[0])
    more = Ciphertext(replace(one.header, additions=2), one.chunks).to_bytes()
    with pytest.raises(BadCiphertext, match="must name each of its contributions; found '1 named of 3'"):
        client.open(more, number=1, least=3)
    nobody = Ciphertext(replace(one.header, contributors=()), one.chunks).to_bytes()
    with pytest.raises(BadCiphertext, match="none named"):
        client.open(nobody, number=1)


def test_a_sum_that_the_server_made_itself_is_refused(pair, keys):
    client, server = pair
    honest = server.add(sent(client, 3))
    counts = list(server.keys.counts(parsed(honest).header.length))
    if keys.client.scheme == "bfv":
        made = [seal.encrypt(server.keys.context, BFV, [7] * 4096) for _ in counts]
    else:
        made = [seal.encrypt(server.keys.context, CKKS, [7 * UNIT] * 4096) for _ in counts]
    refuses(client, claimed(honest, made), least=3)


def test_constants_added_to_the_data_are_refused(pair, keys):
    """The tags authenticate the data, not only the names: even one unit in one slot is found."""
    client, server = pair
    honest = server.add(sent(client, 3))
    shift = np.zeros(4096)
    shift[17] = 1
    values, parameters = (shift.astype(int).tolist(), BFV) if keys.client.scheme == "bfv" else (shift * UNIT, CKKS)
    extra = seal.encrypt(server.keys.context, parameters, list(values))
    first, *rest = parsed(honest).chunks
    loaded = [server.keys.load_chunk(chunk, 1, "x") for chunk in (first, extra)]
    refuses(client, claimed(honest, [server.keys.dump_chunk(server.keys.add_chunk(*loaded)), *rest]), least=3)


def test_chunks_of_several_sums_are_not_mixed(pair):
    client, server = pair
    messages = sent(client, 4)
    some, others = server.add(messages[:3]), server.add(messages[1:])
    refuses(client, claimed(some, [parsed(some).chunks[0], parsed(others).chunks[1]]), least=3)
    even = sent(client, 3, size=2 * 4000)  # two chunks of different lengths cannot change places unnoticed either
    total = server.add(even)
    swapped = claimed(total, parsed(total).chunks[::-1])
    refuses(client, swapped, least=3)


def test_the_same_contribution_twice_is_refused(pair):
    client, server = pair
    a, b, c = sent(client, 3)
    with pytest.raises(BadCiphertext, match="at most one contribution of each client"):
        server.add([a, a, b])
    refuses(client, claimed(server.add([a, b, c]), added(server, a, a, b)), least=3)
    header = parsed(a).header
    double = replace(header, additions=1, contributors=header.contributors * 2, weight=2.0)
    with pytest.raises(BadCiphertext, match="at most one contribution of each client"):
        client.open(Ciphertext(double, added(server, a, a)).to_bytes(), number=1)


def test_two_answers_of_one_client_are_told_apart(pair):
    """Something lost and made again has another nonce: the first one's name does not open the second."""
    client, server = pair
    a, b, _ = sent(client, 3)
    again = client.contribute(numbers(0), 1.0, client=0, number=1, round_number=0)
    refuses(client, claimed(server.add([a, b]), added(server, again, b)))
    mixed = [parsed(server.add([a, b])).chunks[0], parsed(server.add([again, b])).chunks[1]]
    refuses(client, claimed(server.add([a, b]), mixed))


def test_differences_of_contributions_are_refused(pair):
    """2A − B with the names of A alone: the data of one, and a multiple of what two differ by."""
    client, server = pair
    a, b = sent(client, 2)
    loaded = [[server.keys.load_chunk(chunk, 1, "x") for chunk in parsed(m).chunks] for m in (a, a, b)]
    combined = [x.add_(y).sub_(z) for x, y, z in zip(*loaded, strict=True)]
    refuses(client, claimed(a, [server.keys.dump_chunk(chunk) for chunk in combined]))


@pytest.mark.parametrize("change", ["number", "round", "run", "channel", "code", "key"])
def test_a_sum_is_opened_in_its_place_only(pair, keys, change, tmp_path):
    """An earlier round's sum, one of another run or channel, one whose header says another round."""
    client, server = pair
    honest = server.add(sent(client, 3, number=4, round_number=6))
    client.open(honest, number=4, least=3)
    scheme = keys.client.scheme
    if change == "number":
        refuses(client, honest, number=5)
    elif change == "round":
        later = parsed(honest)
        refuses(client, Ciphertext(replace(later.header, round=7), later.chunks).to_bytes(), number=4)
    elif change in ("run", "channel"):
        code = WholeNumbers(8, MODULI[scheme])
        elsewhere, _ = aggregators(scheme, keys, fixed_point=code, **(RUN | {change: "another"}))
        refuses(elsewhere, honest, number=4)
    elif change == "code":
        code = FixedPoint(1.0, 8.0, 8, MODULI[scheme])
        other, _ = aggregators(scheme, keys, fixed_point=code, **RUN)
        header = replace(parsed(honest).header, encoding=code.fingerprint)
        refuses(other, Ciphertext(header, parsed(honest).chunks).to_bytes(), number=4)
    else:  # a key that was written and read again makes the same tags
        keys.save(tmp_path / "keys")
        copy = type(client)(load_client(tmp_path / "keys"), WholeNumbers(8, MODULI[scheme]), **RUN)
        np.testing.assert_array_equal(copy.open(honest, number=4), client.open(honest, number=4))


def test_rounds_are_not_added_up(pair):
    client, server = pair
    early = client.contribute(numbers(0), 1.0, client=0, number=1, round_number=0)
    late = client.contribute(numbers(1), 1.0, client=1, number=1, round_number=1)
    with pytest.raises(BadCiphertext, match="must be of round 0, as the others; found 1"):
        server.add([early, late])
    honest = server.add(sent(client, 2))
    refuses(client, claimed(honest, added(server, early, late)))


def test_multiples_of_a_contribution_are_refused(bfv_keys):
    """Anybody can multiply a ciphertext by known numbers, slot by slot, as far as noise allows."""
    client, server = aggregators("bfv", bfv_keys, fixed_point=WholeNumbers(8, MODULI["bfv"]), **RUN)
    a, b = sent(client, 2, size=10)
    honest = server.add([a, b])
    for factor in (2, -1, 3):
        left, right = (server.keys.load_chunk(parsed(m).chunks[0], 1, "x") for m in (a, b))
        chunk = server.keys.dump_chunk(left.add_(right.mul_plain_([factor] * 4096)))
        with pytest.raises((Forged, TooNoisy)):
            client.open(claimed(honest, [chunk]), number=1)


def test_contributions_from_elsewhere_say_whose_they_are(pair):
    client, server = pair
    good = sent(client, 2)
    server.require_readable(good[1], 1.0, "reply of Bob", client=1, round_number=0)
    with pytest.raises(BadCiphertext, match="reply of Bob must be of client 0 and round 0; found 'client 1, round 0'"):
        server.require_readable(good[1], 1.0, "reply of Bob", client=0, round_number=0)
    with pytest.raises(BadCiphertext, match="must be of client 1 and round 3"):
        server.require_readable(good[1], 1.0, "reply of Bob", client=1, round_number=3)
    with pytest.raises(BadCiphertext, match="must be a single contribution; found '2 of them'"):
        server.require_readable(server.add(good), 2.0, "reply of Bob", client=0, round_number=0)


def test_messages_of_the_version_before_are_named(pair):
    client, server = pair
    old = parsed(sent(client, 1)[0])
    old_bytes = Ciphertext(replace(old.header, contributors=(), round=0), old.chunks).to_bytes()
    assert old_bytes[4] == 2
    for use in (lambda: server.add([old_bytes]), lambda: client.open(old_bytes)):
        with pytest.raises(BadCiphertext, match="made by an earlier version of privfair: start a new run"):
            use()
    with pytest.raises(ValueError, match="run must have been begun with encrypted messages of version 3"):
        require_resumable("bfv", None)
    require_resumable("plain", None)
    require_resumable("ckks", 3)


def test_a_header_with_another_number_of_names_is_damaged(pair):
    client, _ = pair
    data = bytearray(sent(client, 1, size=3)[0])
    data[5] = 0
    header = parsed(bytes(data)).header.to_bytes()
    with pytest.raises(Damaged):
        Ciphertext.from_bytes(header[:-16])


def test_tags_do_not_touch_the_range_of_the_data(pair, keys):
    """Values at both ends of the code, from as many contributors as it has room for."""
    client, server = pair
    most = WholeNumbers(8, MODULI[keys.client.scheme]).most
    values = np.where(np.arange(SIZE) % 2, most, -most).astype(float)
    messages = [client.contribute(values, 1.0, client=k, number=1) for k in range(8)]
    opened = client.open(server.add(messages), number=1, least=8)
    assert np.abs(opened - 8 * values).max() <= 7 * client.noise


TAGGINGS = [Tagging(MODULI["bfv"], 4, 30), Tagging(2**44 + 7, 3, 23)]


@FEW
@given(st.sampled_from(TAGGINGS), st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_inner_products_are_those_of_exact_integers(tagging, seed, size):
    rng = np.random.default_rng(seed)
    most = 2**44 if tagging.prime > 2**31 else tagging.prime // 2
    data = np.append(rng.integers(-most, most + 1, size), [most, -most])
    keys = rng.integers(0, tagging.prime, (tagging.count, data.size))
    keys[0, :] = tagging.prime - 1
    exact = [sum(int(k) * int(v) for k, v in zip(row, data, strict=True)) % tagging.prime for row in keys]
    assert _inner(keys, data, tagging.prime) == exact


@FEW
@given(st.sampled_from(TAGGINGS), st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 60), st.data())
def test_sums_hold_and_any_change_of_them_does_not(tagging, seed, count, size, data):
    """The law of the MAC on the integers themselves, without encryption."""
    rng = np.random.default_rng(seed)
    key = TagKey(b"k" * 64, tagging, ["run", 1])
    people = [Contributor.new(k) for k in range(count)]
    vectors = [rng.integers(-1000, 1001, size) for _ in people]
    slots = tagging.width + 25
    total = sum(key.tagged(v, slots, p) for v, p in zip(vectors, people, strict=True))
    chunks = [total[start : start + slots] for start in range(0, len(total), slots)]
    assert all(key.holds(i, chunk, people) for i, chunk in enumerate(chunks))
    at = data.draw(st.integers(0, len(chunks) - 1))
    spot = data.draw(st.integers(0, len(chunks[at]) - 1))
    changed = chunks[at].copy()
    changed[spot] += data.draw(st.sampled_from([1, -1, 5, 2**20]))
    assert not key.holds(at, changed, people)
    assert not key.holds(at + 1, chunks[at], people)
    masked = chunks[at].copy()  # the tags of all, the data of all but one: what a mask over the slots would leave
    masked[: -tagging.width] -= np.append(vectors[0], 0)[at * 25 : at * 25 + len(masked) - tagging.width] + 1
    assert not key.holds(at, masked, people)
    assert not key.holds(at, chunks[at], people[1:])
    assert not TagKey(b"other", tagging, ["run", 1]).holds(at, chunks[at], people)
