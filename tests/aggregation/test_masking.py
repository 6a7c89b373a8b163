"""Secure sums with masks: exact with dropouts, and nothing but the sum for a lying server with k holders."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from accountant.errors import InputError
from privfair.secure_aggregation import masks as parts
from privfair.secure_aggregation.masking import MaskingHolder, MaskingServer, Unopened
from privfair.secure_aggregation.masks import (
    FIELD,
    MODULUS,
    Cohort,
    Federation,
    GroupCode,
    MaskingRefused,
    MaskStream,
    PublicKeys,
    Reconstruction,
    UnmaskRequest,
    combined,
    split_secret,
    to_integers,
    to_words,
)

LENGTH = 7
KEY = bytes(range(32))


def federation(
    n: int, k: int | None = None, c: int | None = None, *, sums: int = 2, run: str = "r"
) -> list[MaskingHolder]:
    identities = [Ed25519PrivateKey.generate() for _ in range(n)]
    public = tuple(key.public_key().public_bytes_raw() for key in identities)
    about = Federation(Cohort.of(n, k, c), public, run, b"plan", sums_per_block=sums)
    return [MaskingHolder(about, i, key) for i, key in enumerate(identities)]


def prepare(holders: list[MaskingHolder], block: int = 0, absent: tuple[int, ...] = ()) -> dict[int, PublicKeys]:
    """One block of an honest server; the roster."""
    there = [h for h in holders if h.holder not in absent]
    keys = {h.holder: h.keys(block) for h in there}
    shares = {h.holder: h.shares(block, keys) for h in there}
    sealed = {h.holder: {j: s.sealed[h.holder] for j, s in shares.items() if j != h.holder} for h in there}
    signatures = [h.sign_roster(block, keys, sealed[h.holder]) for h in there]
    for h in there:
        h.agree(block, signatures)
    return keys


def vectors(n: int, seed: int, length: int = LENGTH) -> np.ndarray:
    return np.random.default_rng(seed).integers(-(2**20), 2**20, (n, length))


# ---- the cohort


@pytest.mark.parametrize(
    ("n", "k", "c", "h"), [(3, 1, 3, 2), (5, 1, 4, 3), (10, 3, 9, 6), (41, 13, 37, 24), (300, 100, 270, 165)]
)
def test_defaults_of_the_cohort(n: int, k: int, c: int, h: int) -> None:
    cohort = Cohort.of(n)
    assert (cohort.colluders, cohort.smallest, cohort.honest) == (k, c, h)


@pytest.mark.parametrize(("n", "k", "c"), [(2, 1, 2), (10, 0, 9), (10, 3, 11), (10, 3, 6), (3, 2, 3), (5, 3, 5)])
def test_an_unsafe_cohort_is_refused(n: int, k: int, c: int) -> None:
    if (n, k, c) == (5, 3, 5):  # safe: five of five, three collude, two honest remain
        assert Cohort(n, k, c).honest == 2
        return
    with pytest.raises(InputError, match="must"):
        Cohort(n, k, c)


@pytest.mark.parametrize("n", [3, 4, 5, 6])
def test_whatever_survivors_each_holder_is_told_at_most_one_sum_opens_with_h_honest_vectors(n: int) -> None:
    """All sets a lying server can name, to all honest holders; the colluders answer for every set."""
    for k, c in itertools.product(range(1, n), range(2, n + 1)):
        try:
            cohort = Cohort(n, k, c)
        except InputError:
            continue
        sets = [set(s) for size in range(c, n + 1) for s in itertools.combinations(range(n), size)]
        honest = range(n - k)  # the last k collude
        for told in itertools.combinations_with_replacement(range(len(sets)), len(honest)):
            # A vector j opens when t parties gave its seed's share and the pairwise masks of those outside are known.
            seeds = {j for j in honest if sum(j in sets[s] for s in told) + k >= cohort.threshold}
            keys = {j for j in honest if sum(j not in sets[s] for s in told) + k >= cohort.threshold}
            assert not seeds & keys
            opened = set(honest) - keys  # what is left connected by masks: it opens only together, if all seeds do
            if opened <= seeds and opened:
                assert len(opened) >= cohort.honest


# ---- masks and shares


def test_masks_are_the_words_of_aes_in_counter_mode_below_the_modulus() -> None:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    seed = bytes(reversed(range(32)))
    stream = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor().update(bytes(4 * 400_000))
    words = [int.from_bytes(stream[i : i + 4], "little") & (2**30 - 1) for i in range(0, len(stream), 4)]
    expected = [word for word in words if word < MODULUS]
    assert len(expected) < len(words)  # some were dropped, so that dropping is tested
    taken, made = MaskStream(seed), []
    for count in (1, 16_384, 100_000, 3):
        made += list(taken.take(count))
    assert made == expected[: len(made)]


def test_masks_are_uniform() -> None:
    """Chi-square over 1,000 bins; the limit is exceeded by chance once in a million."""
    from scipy.stats import chi2

    numbers = MaskStream(KEY).take(1_000_000).astype(float)
    counts = np.histogram(numbers, bins=1000, range=(0, MODULUS))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < chi2.isf(1e-6, 999)


def test_the_field_of_shares_is_a_prime_field() -> None:
    """Miller–Rabin with 40 bases: wrong with probability 4⁻⁴⁰."""
    odd, twos = FIELD - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    rng = np.random.default_rng(0)
    for _ in range(40):
        x = pow(int.from_bytes(rng.bytes(31), "big") + 2, odd, FIELD)
        if x in (1, FIELD - 1):
            continue
        squares = [x := x * x % FIELD for _ in range(twos - 1)]
        assert FIELD - 1 in squares


@settings(deadline=None, max_examples=30)
@given(st.binary(min_size=32, max_size=32), st.integers(3, 12), st.data())
def test_any_threshold_of_shares_gives_the_secret_and_fewer_do_not(secret: bytes, n: int, data: st.DataObject) -> None:
    t = data.draw(st.integers(2, n))
    shares = split_secret(secret, range(n), t)
    chosen = data.draw(st.lists(st.sampled_from(range(n)), min_size=t, max_size=n, unique=True))
    assert Reconstruction(chosen).secret(shares) == secret
    assert Reconstruction(chosen[: t - 1]).secret(shares) != secret  # by chance: 2⁻²⁵⁶


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(-(MODULUS // 2), MODULUS // 2), min_size=1, max_size=20))
def test_integers_survive_as_words(values: list[int]) -> None:
    assert list(to_integers(to_words(np.array(values)))) == values


# ---- sums


@pytest.mark.parametrize("seed", range(200))
def test_random_dropouts_in_every_step_give_the_exact_sum_or_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 9))
    holders = federation(n)
    cohort = holders[0].federation.cohort
    most = n - cohort.smallest

    def lost(of: list[int], beyond: int = 0) -> set[int]:
        return set(rng.choice(of, size=min(len(of), int(rng.integers(0, most + 1 + beyond))), replace=False).tolist())

    before = lost(list(range(n)))
    keys = prepare(holders, absent=tuple(before))
    x = vectors(n, seed)
    server = MaskingServer(holders[0].federation, 1, keys, LENGTH)
    silent = lost(sorted(keys), beyond=1)
    sent = {k: holders[k].mask(1, to_words(x[k])) for k in keys}
    for k in sorted(set(keys) - silent):
        server.receive(sent[k])
    if len(keys) - len(silent) < cohort.smallest:
        with pytest.raises(Unopened, match="nothing opens"):
            server.close()
        return
    requests = server.close()
    answering = sorted(set(keys) - lost(sorted(keys), beyond=1))
    for k in answering:
        server.answer(holders[k].unmask(requests[k]))
    if len(answering) < cohort.threshold:
        with pytest.raises(Unopened, match="nothing opens"):
            server.total()
        return
    assert np.array_equal(to_integers(server.total()), x[list(server.survivors)].sum(axis=0))


def test_sums_longer_than_a_block_and_of_several_numbers_are_exact() -> None:
    holders = federation(5)
    keys = prepare(holders)
    for number in (0, 1):
        x = vectors(5, number, 40_000)
        server = MaskingServer(holders[0].federation, number, keys, 40_000)
        for h in holders[1:]:
            server.receive(h.mask(number, to_words(x[h.holder])))
        requests = server.close()
        for h in holders[:4]:
            server.answer(h.unmask(requests[h.holder]))
        assert np.array_equal(to_integers(server.total()), x[1:].sum(axis=0))


def test_wrong_shares_are_found_and_nothing_opens() -> None:
    holders = federation(3)
    keys = prepare(holders)
    server = MaskingServer(holders[0].federation, 0, keys, LENGTH)
    for h in holders:
        server.receive(h.mask(0, to_words(vectors(3, 0)[h.holder])))
    requests = server.close()
    answers = [h.unmask(requests[h.holder]) for h in holders]
    changed = {k: bytes(33) for k in answers[0].shares}
    for answer in [replace(answers[0], shares=changed), *answers[1:]]:
        server.answer(answer)
    with pytest.raises(Unopened, match="committed"):
        server.total()


# ---- lying servers


def started(n: int = 5) -> tuple[list[MaskingHolder], dict[int, PublicKeys], MaskingServer, dict[int, UnmaskRequest]]:
    holders = federation(n)
    keys = prepare(holders)
    server = MaskingServer(holders[0].federation, 0, keys, LENGTH)
    for h in holders:
        server.receive(h.mask(0, to_words(vectors(n, 1)[h.holder])))
    return holders, keys, server, server.close()


def without(request: UnmaskRequest, gone: int) -> UnmaskRequest:
    keep = tuple(k for k in request.survivors if k != gone)
    return replace(request, survivors=keep)


def test_a_second_survivor_set_is_refused_and_the_same_gets_the_same_answer() -> None:
    holders, _, _, requests = started()
    first = holders[0].unmask(requests[0])
    assert holders[0].unmask(requests[0]) is first
    with pytest.raises(MaskingRefused, match="Another set of survivors"):
        holders[0].unmask(without(requests[0], 4))


def test_no_answer_has_both_shares_of_a_holder() -> None:
    holders, keys, _, requests = started()
    seeds = {k: holders[k]._sums[0].seed_share for k in keys}
    block = holders[0]._blocks[0]
    answer = holders[0].unmask(without(requests[0], 4))
    assert answer.shares[0] == seeds[0]
    assert answer.shares[4] == block.shares[0][4]
    assert len(answer.shares) == len(keys)


def test_too_few_survivors_are_refused() -> None:
    holders, _, _, requests = started()
    with pytest.raises(MaskingRefused, match="3 survivors"):
        holders[0].unmask(without(without(requests[0], 4), 3))


def test_a_mask_serves_once() -> None:
    holders = federation(3)
    prepare(holders)
    first = holders[0].mask(0, to_words(vectors(3, 0)[0]))
    with pytest.raises(MaskingRefused, match="serves once"):
        holders[0].mask(0, to_words(vectors(3, 0)[0]))
    assert holders[0].again(0) is first
    holders[0].finish(0)
    with pytest.raises(MaskingRefused):
        holders[0].mask(0, to_words(vectors(3, 0)[0]))
    with pytest.raises(MaskingRefused):
        holders[0].again(0)


def test_nothing_is_masked_before_the_roster_is_agreed_on() -> None:
    holders = federation(3)
    keys = {h.holder: h.keys(0) for h in holders}
    with pytest.raises(MaskingRefused, match="not agreed"):
        holders[0].mask(0, to_words(vectors(3, 0)[0]))
    shares = {h.holder: h.shares(0, keys) for h in holders}
    own = holders[0].sign_roster(0, keys, {j: shares[j].sealed[0] for j in (1, 2)})
    with pytest.raises(MaskingRefused, match="1 holders signed"):
        holders[0].agree(0, [own, own])
    with pytest.raises(MaskingRefused, match="not agreed"):
        holders[0].mask(0, to_words(vectors(3, 0)[0]))


def test_with_two_rosters_nobody_masks() -> None:
    """A server shows half of the holders one roster and half another: neither gets t signatures."""
    holders = federation(7)  # k = 2, c = 6
    keys = {h.holder: h.keys(0) for h in holders}
    shares = {h.holder: h.shares(0, keys) for h in holders}
    rosters = [{k: keys[k] for k in keys if k != gone} for gone in (0, 6)]
    signed = []
    for h in holders:
        mine = rosters[0] if h.holder > 3 else rosters[1]
        signed.append(h.sign_roster(0, mine, {j: shares[j].sealed[h.holder] for j in mine if j != h.holder}))
    for h in holders:
        with pytest.raises(MaskingRefused, match="signed this roster"):
            h.agree(0, signed)
    mine = rosters[0]
    with pytest.raises(MaskingRefused, match="Another roster"):
        holders[3].sign_roster(0, mine, {j: shares[j].sealed[3] for j in mine if j != 3})


def test_swapped_keys_are_refused() -> None:
    holders, others = federation(3), federation(3)
    keys = {h.holder: h.keys(0) for h in holders}
    swapped = {**keys, 2: others[2].keys(0)}
    with pytest.raises(MaskingRefused, match="signature"):
        holders[0].shares(0, swapped)
    of_another_block = {**keys, 2: holders[2].keys(1)}
    with pytest.raises(MaskingRefused, match="not of block 0"):
        holders[0].shares(0, of_another_block)
    with pytest.raises(MaskingRefused, match="not its own"):
        holders[0].shares(0, {**keys, 0: replace(keys[0], encryption=keys[1].encryption)})


def test_keys_of_another_run_or_plan_are_refused() -> None:
    holders = federation(3)
    about, identity = holders[2].federation, holders[2]._identity
    for elsewhere in (replace(about, run="s"), replace(about, plan=b"another")):
        theirs = MaskingHolder(elsewhere, 2, identity).keys(0)
        with pytest.raises(MaskingRefused, match="signature"):
            holders[0].shares(0, {0: holders[0].keys(0), 1: holders[1].keys(0), 2: theirs})


def test_shares_are_for_one_receiver_and_one_sender() -> None:
    holders = federation(3)
    keys = {h.holder: h.keys(0) for h in holders}
    shares = {h.holder: h.shares(0, keys) for h in holders}
    with pytest.raises(MaskingRefused, match="changed"):
        holders[0].sign_roster(0, keys, {1: shares[2].sealed[0], 2: shares[1].sealed[0]})
    with pytest.raises(MaskingRefused, match="changed"):
        holders[0].sign_roster(0, keys, {1: shares[1].sealed[2], 2: shares[2].sealed[0]})


def test_a_made_up_survivor_is_refused() -> None:
    """A server that names a holder which sent nothing has no commitment with its signature."""
    holders = federation(5)
    keys = prepare(holders)
    server = MaskingServer(holders[0].federation, 0, keys, LENGTH)
    for h in holders[:4]:
        server.receive(h.mask(0, to_words(vectors(5, 1)[h.holder])))
    request = server.close()[0]
    forged = replace(
        request,
        survivors=(*request.survivors, 4),
        commitments={**request.commitments, 4: request.commitments[1]},
        sealed={**request.sealed, 4: request.sealed[1]},
    )
    with pytest.raises(MaskingRefused, match="signature"):
        holders[0].unmask(forged)


def test_a_holder_declared_dead_that_sent_its_vector_stays_hidden() -> None:
    """With its mask key and all else that the server gets, its vector is still under its seed."""
    n = 5
    holders = federation(n)
    keys = prepare(holders)
    x = to_words(vectors(n, 1))
    sent = {h.holder: h.mask(0, x[h.holder]) for h in holders}
    server = MaskingServer(holders[0].federation, 0, keys, LENGTH)
    for k in range(4):
        server.receive(sent[k])
    requests = server.close()
    for k in range(4):
        server.answer(holders[k].unmask(requests[k]))
    server.total()
    used = Reconstruction(range(4))
    key = used.secret({k: server._answers[k].shares[4] for k in range(4)})
    assert key == holders[4]._blocks[0].masks[0].private_bytes_raw()  # the server has the mask key of holder 4 …
    about = holders[4].federation
    private = parts.X25519PrivateKey.from_private_bytes(key)
    pairs = [parts.pair_seed(private, keys[j].masks[0], about, 0, (4, j)) for j in range(4)]
    unpaired = combined(LENGTH, pairs, start=np.frombuffer(sent[4].values, dtype="<u4").astype(np.uint32))
    assert not np.any(unpaired == x[4])  # … and what is left is hidden by its seed
    late = replace(requests[0], survivors=tuple(range(5)))
    for h in holders[:4]:
        with pytest.raises(MaskingRefused, match="Another set"):
            h.unmask(late)


def test_mask_keys_and_encryption_keys_differ_and_none_serves_two_sums() -> None:
    holders = federation(3, sums=4)
    found: Counter[bytes] = Counter()
    for h in holders:
        for block in (0, 1):
            keys = h.keys(block)
            found.update([keys.encryption, *keys.masks])
    assert len(found) == 3 * 2 * 5
    assert set(found.values()) == {1}


# ---- what an adversary can compute, by linear algebra


def adversary_rows(
    n: int, colluders: set[int], sums: int, survivors: list[set[int]], *, reuse: bool = False, seedless: bool = False
) -> tuple[list[dict[str, int]], list[str]]:
    """Every linear fact about honest vectors and unknown seeds that server and colluders have after all sums.

    Unknowns: x of each honest holder and sum, its seed's mask, and the pairwise masks of two honest holders.
    """
    rows: list[dict[str, int]] = []
    honest = [i for i in range(n) if i not in colluders]
    for s in range(sums):
        label = 0 if reuse else s
        for i in honest:
            row = {f"x{i},{s}": 1}
            if not seedless:
                row[f"b{i},{s}"] = 1
            for j in honest:
                if j != i:
                    low, high = sorted((i, j))
                    row[f"s{low},{high},{label}"] = 1 if j > i else -1
            rows.append(row)
        for i in honest:  # what unmasking gives: the seed of survivors, the pairwise masks of those who dropped out
            if i in survivors[s]:
                rows.append({f"b{i},{s}": 1})
            else:
                for j in honest:
                    if j != i:
                        low, high = sorted((i, j))
                        rows.append({f"s{low},{high},{label}": 1})
    names = sorted({name for row in rows for name in row})
    return rows, names


def span_of_vectors(rows: list[dict[str, int]], names: list[str]) -> list[dict[str, int]]:
    """A basis of the combinations of rows in which no seed is left, modulo m."""
    seeds, wanted = [n for n in names if n[0] != "x"], [n for n in names if n[0] == "x"]
    matrix = [[row.get(name, 0) % MODULUS for name in seeds + wanted] for row in rows]
    place = 0
    for column in range(len(seeds) + len(wanted)):
        pivot = next((r for r in range(place, len(matrix)) if matrix[r][column]), None)
        if pivot is None:
            continue
        matrix[place], matrix[pivot] = matrix[pivot], matrix[place]
        inverse = pow(matrix[place][column], -1, MODULUS)
        matrix[place] = [v * inverse % MODULUS for v in matrix[place]]
        for r in range(len(matrix)):
            if r != place and matrix[r][column]:
                factor = matrix[r][column]
                matrix[r] = [(a - factor * b) % MODULUS for a, b in zip(matrix[r], matrix[place], strict=True)]
        place += 1
    left = [row for row in matrix if any(row) and not any(row[: len(seeds)])]
    return [{name: v for name, v in zip(wanted, row[len(seeds) :], strict=True) if v} for row in left]


SURVIVORS = [{0, 1, 2, 3, 4}, {0, 1, 2, 4}, {1, 2, 3, 4}]


def test_the_adversarys_span_over_all_sums_holds_only_the_sums() -> None:
    rows, names = adversary_rows(5, {4}, 3, SURVIVORS)
    found = {frozenset(row.items()) for row in span_of_vectors(rows, names)}
    assert found == {frozenset((f"x{i},{s}", 1) for i in SURVIVORS[s] - {4}) for s in range(3)}


def test_the_span_test_finds_masks_that_are_reused_or_left_out() -> None:
    for bug in ({"reuse": True}, {"seedless": True}):
        rows, names = adversary_rows(5, {4}, 3, SURVIVORS, **bug)
        assert len(span_of_vectors(rows, names)) > 3


def test_the_masks_of_the_program_are_the_ones_of_the_span_test() -> None:
    """y_i less its seed and its pairwise masks, each made here from the keys, is x_i; all masks of two sums differ."""
    holders = federation(4, sums=2)
    keys = prepare(holders)
    x, seen = to_words(vectors(4, 3)), Counter[bytes]()
    for number in (0, 1):
        for h in holders:
            sent = h.mask(number, x[h.holder])
            private = h._blocks[0].masks[number]
            plus, minus = [], []
            for j in keys:
                if j != h.holder:
                    seed = parts.pair_seed(private, keys[j].masks[number], h.federation, number, (h.holder, j))
                    (plus if j > h.holder else minus).append(seed)
            seen.update([*plus, *minus])
            left = combined(LENGTH, minus, plus, np.frombuffer(sent.values, "<u4").astype(np.uint32))
            mask = to_words(left.astype(np.int64) - x[h.holder])
            shares = {
                k: holders[k]._opened(0, keys[h.holder], f"seed {number}", sent.sealed[k], sent.commitment)
                for k in keys
                if k != h.holder
            }
            shares[h.holder] = h._sums[number].seed_share
            seed = Reconstruction(sorted(keys)).secret(shares)
            assert parts.commitment_of(seed) == sent.commitment
            assert np.array_equal(MaskStream(seed).take(LENGTH), mask)
    assert len(seen) == 2 * 6  # six pairs, two sums
    assert set(seen.values()) == {2}  # both holders of a pair, and nobody else


# ---- the group's pad and check values


def group_sum(code: GroupCode, x: np.ndarray, number: int, who: list[int]) -> np.ndarray:
    encoded = [code.encode(to_words(x[i]), number, i).astype(np.int64) for i in who]
    return to_words(np.sum(encoded, axis=0))


@pytest.mark.parametrize("length", [1, 20_000])
@pytest.mark.parametrize("who", [[0, 1], [0, 2, 3], [1, 2, 3, 4]])
def test_the_group_opens_its_sum(who: list[int], length: int) -> None:
    code, x = GroupCode(KEY, "run", "updates"), vectors(5, 4, length)
    opened = to_integers(code.decode(group_sum(code, x, 3, who), 3, who))
    assert np.array_equal(opened, x[who].sum(axis=0))


def test_a_sum_that_was_changed_made_up_or_is_another_is_refused() -> None:
    code, x, who = GroupCode(KEY, "run", "updates"), vectors(5, 4), [0, 2, 3]
    total = group_sum(code, x, 3, who)
    for place in range(total.size):
        changed = total.copy()
        changed[place] = (int(changed[place]) + 1) % MODULUS
        with pytest.raises(MaskingRefused, match="changed"):
            code.decode(changed, 3, who)
    for number, named in ((4, who), (3, [0, 2]), (3, [0, 2, 4])):
        with pytest.raises(MaskingRefused, match="changed"):
            code.decode(total, number, named)
    for other in (
        GroupCode(KEY, "another", "updates"),
        GroupCode(KEY, "run", "counts"),
        GroupCode(bytes(32), "run", "updates"),
    ):
        with pytest.raises(MaskingRefused, match="changed"):
            other.decode(total, 3, who)
    with pytest.raises(MaskingRefused, match="changed"):
        code.decode(np.zeros_like(total), 3, who)


def test_a_constant_tag_would_not_be_enough() -> None:
    """Adding the same change to a value and to its check values passes only if the change is what ρ makes of it."""
    code, x, who = GroupCode(KEY, "run", "updates"), vectors(5, 4), [0, 1, 2]
    total = group_sum(code, x, 3, who)
    change = np.zeros_like(total)
    change[0] = 1
    change[-3:] = 1
    with pytest.raises(MaskingRefused, match="changed"):
        code.decode(to_words(total.astype(np.int64) + change), 3, who)


def test_check_values_are_inner_products_modulo_m() -> None:
    """Against Python's integers, over more than one block."""
    code, x = GroupCode(KEY, "run", "updates"), to_words(vectors(1, 5, 20_000))[0]
    for check, found in enumerate(code._checks(x, 9)):
        rho = MaskStream(code._seed("rho", 9, check)).take(x.size)
        assert found == sum(int(a) * int(b) for a, b in zip(x, rho, strict=True)) % MODULUS


def test_the_sum_of_a_padded_vector_says_nothing_without_the_group_key() -> None:
    """The pad is uniform and |U| invertible modulo a prime; modulo 2³² an even |U| would show the lowest bit."""
    assert MODULUS % 2 == 1
    code, who = GroupCode(KEY, "run", "updates"), [0, 1]
    zeros, ones = np.zeros((2, 4000), dtype=np.int64), np.ones((2, 4000), dtype=np.int64)
    low = [group_sum(code, x, s, who)[:4000] % 2 for s, x in enumerate((zeros, ones))]
    for bits in low:  # 4,000 fair coins: beyond 5 standard errors once in 1.7 million
        assert abs(bits.mean() - 0.5) < 5 * 0.5 / 4000**0.5


# ---- keys that are none, shares that are wrong, and what is left on a disk


def with_bad_key(holder: MaskingHolder, keys: PublicKeys, *, mask: bool) -> PublicKeys:
    """The holder's own keys, signed by it, with one of low order: every exchange with it fails."""
    bad = replace(keys, masks=(keys.masks[0], bytes(32))) if mask else replace(keys, encryption=bytes(32))
    unsigned = replace(bad, signature=b"")
    return replace(unsigned, signature=holder._identity.sign(holder.federation.keys_text(unsigned)))


@pytest.mark.parametrize("mask", [True, False])
def test_a_key_of_low_order_is_refused_before_a_roster_is_signed(mask: bool) -> None:
    holders = federation(5)
    keys = {h.holder: h.keys(0) for h in holders}
    keys[4] = with_bad_key(holders[4], keys[4], mask=mask)
    for h in holders[:4]:
        with pytest.raises(MaskingRefused, match="A key of holder 4 is no key"):
            h.shares(0, keys)


def test_one_wrong_answer_of_more_than_enough_is_found_and_left_out() -> None:
    for liars in ((0,), (9,), (0, 3), (2, 8, 9)):  # of ten answers seven are enough
        holders = federation(10, 3, 7)
        keys = prepare(holders)
        server = MaskingServer(holders[0].federation, 0, keys, LENGTH)
        x = vectors(10, len(liars))
        for h in holders[:9]:  # the last one's mask key is opened
            server.receive(h.mask(0, to_words(x[h.holder])))
        for k, request in server.close().items():
            answer = holders[k].unmask(request)
            wrong = {j: parts.FIELD.to_bytes(33, "big")[:32] + bytes([j]) for j in answer.shares}
            server.answer(replace(answer, shares=wrong) if k in liars else answer)
        assert np.array_equal(to_integers(server.total()), x[:9].sum(axis=0)), liars


def test_one_wrong_answer_more_than_can_be_left_out_opens_nothing() -> None:
    holders = federation(10, 3, 7)
    server = MaskingServer(holders[0].federation, 0, prepare(holders), LENGTH)
    for h in holders:
        server.receive(h.mask(0, to_words(vectors(10, 1)[h.holder])))
    for k, request in server.close().items():
        answer = holders[k].unmask(request)
        server.answer(replace(answer, shares={j: bytes(33) for j in answer.shares}) if k < 4 else answer)
    with pytest.raises(Unopened, match="committed"):
        server.total()


def test_when_a_block_is_over_nothing_on_the_disk_decrypts_its_shares() -> None:
    holders = federation(3)
    prepare(holders)
    before = holders[0].kept()
    assert len(before.blocks[0].encryption) == 32
    holders[0].finish_before(1)
    assert len(holders[0].kept().blocks[0].encryption) == 32  # the other sum of the block needs it
    holders[0].finish_before(2)
    (over,) = holders[0].kept().blocks
    assert (over.encryption, over.masks, over.keys, over.shares, over.sealed) == (b"", b"", b"", b"", b"")
    # what versions before wrote has the key still: it is read, and gone when it is written again
    for kept in (over, replace(over, encryption=before.blocks[0].encryption)):
        again = MaskingHolder(holders[0].federation, 0, holders[0]._identity)
        again.restore(replace(before, blocks=(kept,)))
        assert again.kept().blocks == (over,)
        with pytest.raises(MaskingRefused, match="All sums of block 0 are over"):
            again.keys(0)


def test_a_restored_folder_seals_other_shares_under_another_nonce() -> None:
    holders = federation(3)
    keys = {h.holder: h.keys(0) for h in holders}
    before = holders[0].kept()
    sent = [holders[0].shares(0, keys).sealed[1]]
    again = MaskingHolder(holders[0].federation, 0, holders[0]._identity)
    again.restore(before)
    sent.append(again.shares(0, keys).sealed[1])
    first, second = (holders[1]._opened(0, keys[0], "mask keys", sealed) for sealed in sent)
    assert first != second  # split anew, under the same key
    assert sent[0][:12] != sent[1][:12]
    hidden = [sealed[12 : 12 + len(first)] for sealed in sent]
    apart = bytes(a ^ b for a, b in zip(*hidden, strict=True))
    assert apart != bytes(a ^ b for a, b in zip(first, second, strict=True))
