"""Secure sums among neighbours: exact with dropouts, dead with too many, and nothing but the sum for who colludes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from typing import Any

import mpmath
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from accountant.errors import InputError
from benchmarks.many_holders import one_sum
from privfair.secure_aggregation import masks, neighbours
from privfair.secure_aggregation.masking import MaskingHolder, MaskingServer, Unopened
from privfair.secure_aggregation.masks import (
    Cohort,
    Federation,
    MaskingRefused,
    PublicKeys,
    Roster,
    to_integers,
    to_words,
)
from privfair.secure_aggregation.neighbours import Neighbourhood
from tests.aggregation.test_masking import span_of_vectors

LENGTH = 5


class Among:
    """All holders of a small federation that masks among neighbours, and its honest server."""

    def __init__(self, n: int, k: int = 1, c: int | None = None, *, degree: int, threshold: int) -> None:
        identities = [Ed25519PrivateKey.generate() for _ in range(n)]
        public = tuple(key.public_key().public_bytes_raw() for key in identities)
        drawn = Neighbourhood(degree, threshold)
        self.about = Federation(Cohort.of(n, k, c), public, "run", b"plan", 2, drawn)
        self.holders = [MaskingHolder(self.about, i, key) for i, key in enumerate(identities)]

    def start(self, without_keys: Collection[int] = (), without_shares: Collection[int] = ()) -> None:
        """Keys and shares: the roster is who sent both."""
        self.keys = {h.holder: h.keys(0) for h in self.holders if h.holder not in without_keys}
        self.chosen = {k: self.holders[k].chosen(0) or () for k in self.keys}
        self.sealed = {}
        for k in set(self.keys) - set(without_shares):
            near = {j: self.keys[j] for j in (*self.chosen[k], k) if j in self.keys}
            if len(near) > self.about.threshold:
                self.sealed[k] = self.holders[k].shares(0, near).sealed
        self.roster = {k: self.keys[k] for k in sorted(self.sealed)}

    def shown(self, k: int, roster: dict[int, PublicKeys]) -> tuple[Any, ...]:
        """What holder k is asked to sign for a roster."""
        givers = {j: self.sealed[j][k] for j in roster if j != k and k in self.sealed[j]}
        near = {j: roster[j] for j in {*self.chosen[k], *givers, k} if j in roster}
        return 0, near, givers, Roster.of(roster)

    def agree(self) -> None:
        """Signatures on the roster, and agreement."""
        signed = [self.holders[k].sign_roster(*self.shown(k, self.roster)) for k in self.roster]
        for k in self.roster:
            self.holders[k].agree(0, signed)

    def server(self, number: int = 0) -> MaskingServer:
        return MaskingServer(self.about, number, self.roster, LENGTH, chosen=self.chosen)


def vectors(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-(2**20), 2**20, (n, LENGTH))


# ---- how many neighbours


def hypergeometric_tail(others: int, marked: int, drawn: int, least: int) -> mpmath.mpf:
    """P[X ≥ least], by mpmath's gamma functions."""
    with mpmath.workdps(60):
        return mpmath.fsum(
            mpmath.binomial(marked, x) * mpmath.binomial(others - marked, drawn - x) / mpmath.binomial(others, drawn)
            for x in range(least, min(marked, drawn) + 1)
        )


def failures(n: int, k: int, found: Neighbourhood) -> tuple[float, float]:
    """log₂ of n times the probabilities of too many colluders, and of too many silent ones, around a holder."""
    silent = -(-n // 20)
    colluding = (n - k) * hypergeometric_tail(n - 1, k, found.degree, found.threshold)
    stuck = n * hypergeometric_tail(n - 1, silent, found.degree, found.degree - found.threshold + 1)
    return tuple(float(mpmath.log(p, 2)) if p else -np.inf for p in (colluding, stuck))


@pytest.mark.parametrize(
    ("n", "k", "degree", "threshold"),
    [(10_000, 1_000, 93, 53), (10_000, 2_000, 133, 86), (10_000, 3_333, 201, 144), (1_001, 333, 153, 112)],
)
def test_the_degree_is_the_least_that_holds(n: int, k: int, degree: int, threshold: int) -> None:
    """The design's table has 104, 150 and 240: more than these conditions need with the best threshold for each."""
    found = Neighbourhood.of(n, k, n - n // 10)
    assert found == Neighbourhood(degree, threshold)
    colluding, stuck = failures(n, k, found)
    assert colluding <= -81
    assert stuck <= -80
    below, there = (failures(n, k, Neighbourhood(degree - 1, threshold - i)) for i in (2, 1))
    at = failures(n, k, Neighbourhood(degree - 1, threshold))
    assert below[0] > -81  # a smaller threshold is not safe, and with those that are, too few are left to open
    assert there[0] > -81 or there[1] > -80
    assert at[0] > -81 or at[1] > -80
    assert at[1] > -80


def test_tails_are_counted_exactly() -> None:
    """All ways to draw, listed one by one."""
    others, marked, drawn, factor = 9, 4, 5, 3
    draws = list(combinations(range(others), drawn))
    for least in range(drawn + 1):
        tail = Fraction(sum(sum(j < marked for j in d) >= least for d in draws), len(draws))
        assert (factor * tail <= 1) == (neighbours._least(others, marked, drawn, len(draws), factor) <= least)


@pytest.mark.parametrize(("n", "m", "degree"), [(12, 9, 2), (12, 9, 3), (30, 12, 5)])
def test_the_bound_on_a_divided_graph_holds(n: int, m: int, degree: int) -> None:
    """Against 4,000 graphs; the bound may be exceeded by 4 standard errors."""
    rng, draws, cut = np.random.default_rng(7), 4_000, 0
    for _ in range(draws):
        pairs = []
        for i in range(m):
            drawn = rng.choice(n - 1, degree, replace=False)
            pairs += [(i, j) for j in drawn + (drawn >= i) if j < m]
        rows, columns = zip(*pairs, strict=True) if pairs else ((), ())
        cut += connected_components(csr_array((np.ones(len(pairs)), (rows, columns)), shape=(m, m)))[0] > 1
    bound = 2 ** neighbours._log2_of_a_cut(n, m, degree)
    assert cut / draws <= bound + 4 * np.sqrt(max(min(bound, 1.0), 1 / draws) / draws)
    assert cut / draws > bound / 20  # and it is no idle bound


def test_too_many_colluders_leave_no_safe_neighbourhood() -> None:
    with pytest.raises(InputError, match="enough honest neighbours"):
        Neighbourhood.of(130, 123, 128, bits=20)


def test_up_to_1000_holders_everybody_is_a_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    def about(n: int) -> Federation:
        return Federation(Cohort.of(n), tuple(k.to_bytes(32, "big") for k in range(n)), "run")

    assert about(1_000).neighbours is None
    assert about(1_001).neighbours == Neighbourhood.of(1_001, 333, 901)
    monkeypatch.setattr(masks, "COMPLETE_UP_TO", 300)
    assert about(301).neighbours is not None


# ---- sums


@pytest.mark.parametrize("seed", range(150))
def test_random_dropouts_in_every_step_give_the_exact_sum_or_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(12, 20))
    among = Among(n, c=n - 4, degree=6, threshold=3)

    def lost(of: Collection[int], most: int) -> set[int]:
        return set(rng.choice(sorted(of), size=int(rng.integers(0, most + 1)), replace=False).tolist())

    without_keys = lost(range(n), 1)
    among.start(without_keys, lost(set(range(n)) - without_keys, 1))
    if len(among.roster) < n - 4 or any(sum(j in among.roster for j in among.chosen[k]) < 3 for k in among.roster):
        with pytest.raises(MaskingRefused):
            among.agree()
        return
    among.agree()
    x, server = vectors(n, seed), among.server()
    sent = {k: among.holders[k].mask(0, to_words(x[k])) for k in among.roster}
    for k in sorted(set(sent) - lost(sent, 2)):
        server.receive(sent[k])
    if len(server._arrived) < n - 4:
        with pytest.raises(Unopened, match="nothing opens"):
            server.close()
        return
    requests = server.close()
    answering = set(among.roster) - lost(among.roster, 4)
    for k in answering:
        server.answer(among.holders[k].unmask(requests[k]))
    enough = len(answering) >= n - 4 and all(len(answering & set(among.chosen[k])) >= 3 for k in among.roster)
    if not enough:
        with pytest.raises(Unopened, match="nothing opens"):
            server.total()
        return
    assert np.array_equal(to_integers(server.total()), x[list(server.survivors)].sum(axis=0))


def test_both_sums_and_dead_neighbourhoods_happen_among_those_seeds() -> None:
    """Too many silent neighbours of one holder, while enough others answer: dead, and never wrong."""
    among = Among(14, c=10, degree=5, threshold=3)
    among.start()
    among.agree()
    x = vectors(14, 1)
    for number, silent in ((0, among.chosen[0][:3]), (1, among.chosen[0][:2])):
        server = among.server(number)
        for k in among.roster:
            server.receive(among.holders[k].mask(number, to_words(x[k])))
        requests = server.close()
        for k in set(among.roster) - set(silent):
            server.answer(among.holders[k].unmask(requests[k]))
        if number == 0:
            with pytest.raises(Unopened, match=r"2 neighbours of holder 0 answered, and 3 must"):
                server.total()
        elif all(len(set(among.chosen[k]) - set(silent)) >= 3 for k in among.roster):
            assert np.array_equal(to_integers(server.total()), x.sum(axis=0))


def test_wrong_shares_are_found_and_nothing_opens() -> None:
    among = Among(8, c=7, degree=4, threshold=2)
    among.start()
    among.agree()
    server = among.server()
    for k in list(among.roster)[1:]:
        server.receive(among.holders[k].mask(0, to_words(vectors(8, 1)[k])))
    requests = server.close()
    for k in among.roster:
        answer = among.holders[k].unmask(requests[k])
        changed = {j: bytes(33) if j == 0 else share for j, share in answer.shares.items()}
        server.answer(replace(answer, shares=changed))
    with pytest.raises(Unopened, match="mask key of holder 0"):
        server.total()


# ---- neighbours


def test_neighbours_are_drawn_once_with_the_keys_and_uniformly() -> None:
    """Whatever is asked later, a holder keeps to them; each other holder is drawn with probability degree/(n − 1)."""
    among = Among(9, degree=3, threshold=2)
    holder = among.holders[4]
    first = (holder.keys(0), holder.chosen(0))
    assert (holder.keys(0), holder.chosen(0)) == first
    drawn = np.zeros(9)
    for _ in range(2000):
        who = holder._drawn(3)
        assert len(set(who)) == 3
        drawn[list(who)] += 1
    assert drawn[4] == 0
    p = 3 / 8
    assert np.all(np.abs(np.delete(drawn, 4) / 2000 - p) < 5 * np.sqrt(p * (1 - p) / 2000))


def test_nobody_else_puts_a_neighbour_in() -> None:
    """Shares go to those whom a holder drew; another roster, other keys and fewer neighbours are refused."""
    among = Among(10, c=8, degree=4, threshold=3)
    among.start()
    k = 0
    strangers = sorted(set(range(1, 10)) - set(among.chosen[k]))
    fresh = among.holders[k]
    with pytest.raises(MaskingRefused, match="Shares of block 0 were made already"):
        fresh.shares(0, {j: among.keys[j] for j in (*strangers, k)})
    other = Among(10, c=8, degree=4, threshold=3)
    keys = {h.holder: h.keys(0) for h in other.holders}
    mine = other.holders[k].chosen(0) or ()
    for shown in ((*mine[:3], next(j for j in range(1, 10) if j not in mine)), mine[:2]):
        with pytest.raises(MaskingRefused, match="neighbours that this holder drew"):
            other.holders[k].shares(0, {j: keys[j] for j in (*shown, k)})
    block, near, givers, roster = among.shown(k, among.roster)
    gone = among.chosen[k][0]
    without = {j: keys for j, keys in near.items() if j != gone}
    given = {j: share for j, share in givers.items() if j != gone}
    with pytest.raises(MaskingRefused, match="lacks neighbours"):  # the roster has a neighbour whose keys are hidden
        fresh.sign_roster(block, without, given, roster)
    uninvited = sorted(set(range(1, 10)) - set(near))
    if uninvited:
        with pytest.raises(MaskingRefused, match="sent no shares"):  # somebody who is no neighbour
            fresh.sign_roster(block, {**near, uninvited[0]: among.keys[uninvited[0]]}, givers, roster)
    few = {j: among.roster[j] for j in list(among.roster)[:7]}
    with pytest.raises(MaskingRefused, match="must name 8 holders"):
        fresh.sign_roster(*among.shown(k, few))
    with pytest.raises(MaskingRefused, match="must name 8 holders"):
        fresh.sign_roster(block, near, givers)
    with pytest.raises(MaskingRefused, match="not those of the roster"):
        fresh.sign_roster(block, near, givers, Roster(roster.holders, bytes(len(roster.digests))))
    with pytest.raises(MaskingRefused, match="not in their order"):
        fresh.sign_roster(block, near, givers, Roster(roster.holders[::-1], roster.digests))


def test_with_two_rosters_nobody_masks() -> None:
    """A server shows half of the holders one roster and half another: hardly anybody has t neighbours in its half."""
    among = Among(10, c=8, degree=7, threshold=6)
    among.start()
    rosters = [{k: v for k, v in among.roster.items() if k != gone} for gone in (0, 9)]
    signed = []
    for k in among.roster:
        one, other = rosters[k > 4], rosters[k <= 4]
        shown = one if k in one else other
        try:
            signed.append(among.holders[k].sign_roster(*among.shown(k, shown)))
        except MaskingRefused:  # it drew somebody who is missing, and has too few
            continue
        if k in one and k in other:
            with pytest.raises(MaskingRefused, match=r"Another roster|lacks"):
                among.holders[k].sign_roster(*among.shown(k, other))
    halves = Counter(s.roster for s in signed)
    assert max(halves.values()) <= 6
    for k in among.roster:
        with pytest.raises(MaskingRefused, match="signed"):
            among.holders[k].agree(0, signed)


def test_a_survivor_set_is_whole_on_the_roster_and_answered_once() -> None:
    among = Among(10, c=8, degree=4, threshold=2)
    among.start(without_keys={9})
    among.agree()
    server = among.server()
    for k in among.roster:
        server.receive(among.holders[k].mask(0, to_words(vectors(10, 1)[k])))
    request = server.close()[0]
    holder = among.holders[0]
    for survivors in (tuple(range(10)), (*range(8), 12), (*range(8), -1), tuple(range(7))):
        with pytest.raises(MaskingRefused, match="survivors of the roster"):
            holder.unmask(replace(request, survivors=survivors))
    first = holder.unmask(request)
    assert holder.unmask(request) is first
    assert set(first.shares) == {k for k in among.roster if 0 in among.chosen[k]}
    with pytest.raises(MaskingRefused, match="Another set"):
        holder.unmask(replace(request, survivors=tuple(range(8))))


def test_a_holder_goes_on_where_it_stopped() -> None:
    among = Among(8, c=7, degree=4, threshold=2)
    among.start()
    among.agree()
    server, x = among.server(), vectors(8, 2)
    sent = {k: among.holders[k].mask(0, to_words(x[k])) for k in among.roster}
    for k in list(among.roster)[1:]:
        server.receive(sent[k])
    requests = server.close()
    for k in among.roster:
        again = MaskingHolder(among.about, k, among.holders[k]._identity)
        again.restore(among.holders[k].kept())
        assert again.chosen(0) == among.chosen[k]
        answer = again.unmask(requests[k])
        after = MaskingHolder(among.about, k, among.holders[k]._identity)
        after.restore(again.kept())
        assert after.unmask(requests[k]).shares == answer.shares
        with pytest.raises(MaskingRefused, match="Another set"):
            after.unmask(replace(requests[k], survivors=tuple(range(8))))
        with pytest.raises(MaskingRefused, match="serves once"):
            after.mask(0, to_words(x[k]))
        server.answer(answer)
    assert np.array_equal(to_integers(server.total()), x[1:].sum(axis=0))


def test_a_holder_goes_on_between_its_shares_and_the_roster() -> None:
    among = Among(8, c=7, degree=4, threshold=2)
    among.start()
    for k in among.roster:
        again = MaskingHolder(among.about, k, among.holders[k]._identity)
        again.restore(among.holders[k].kept())
        among.holders[k] = again
    among.agree()
    server, x = among.server(1), vectors(8, 3)
    for k in among.roster:
        server.receive(among.holders[k].mask(1, to_words(x[k])))
    requests = server.close()
    for k in among.roster:
        server.answer(among.holders[k].unmask(requests[k]))
    assert np.array_equal(to_integers(server.total()), x.sum(axis=0))


# ---- what an adversary can compute, by linear algebra


def found_sums(among: Among, colluders: set[int], survivors: set[int]) -> list[dict[str, int]]:
    """What server and colluders can compute of honest vectors in one sum, from the graph that the holders made.

    A secret is theirs once t of those who have its shares answer or collude. Everybody on the roster answers.
    """
    honest, t, rows = [k for k in among.roster if k not in colluders], among.about.threshold, []
    pairs = {
        k: {j for j in among.holders[k]._blocks[0].keys if j != k and j in among.roster} - colluders for k in honest
    }
    for k in honest:
        row = {f"x{k},0": 1, f"b{k}": 1}
        for j in pairs[k]:
            row[f"s{min(k, j)},{max(k, j)}"] = 1 if j > k else -1
        rows.append(row)
        receivers = [j for j in among.chosen[k] if j in among.roster]
        corrupt = sum(j in colluders for j in receivers) >= t
        if k in survivors or corrupt:
            rows.append({f"b{k}": 1})
        if k not in survivors or corrupt:
            rows += [{f"s{min(k, j)},{max(k, j)}": 1} for j in pairs[k]]
    names = sorted({name for row in rows for name in row})
    return span_of_vectors(rows, names)


def honest_parts(among: Among, colluders: set[int], survivors: set[int]) -> int:
    """How many pieces the honest survivors' graph has, from who drew whom."""
    who = sorted((set(among.roster) & survivors) - colluders)
    place = {k: i for i, k in enumerate(who)}
    pairs = [(place[k], place[j]) for k in who for j in among.chosen[k] if j in place]
    rows, columns = zip(*pairs, strict=True) if pairs else ((), ())
    return int(connected_components(csr_array((np.ones(len(pairs)), (rows, columns)), shape=(len(who),) * 2))[0])


def spans(degree: int, threshold: int, seeds: int = 12) -> list[tuple[int, int]]:
    """For several graphs: how many vectors the adversary's span has, and how many pieces the graph."""
    found = []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        among = Among(13, k=3, c=10, degree=degree, threshold=threshold)
        among.start()
        among.agree()
        colluders = set(rng.choice(13, 3, replace=False).tolist())
        survivors = set(range(13)) - set(rng.choice(13, 2, replace=False).tolist())
        basis = found_sums(among, colluders, survivors)
        parts = honest_parts(among, colluders, survivors)
        found.append((len(basis), parts))
        if parts == 1 and len(basis) == 1:
            assert basis == [{f"x{k},0": 1 for k in sorted(survivors - colluders, key=lambda k: f"x{k},0")}]
    return found


def test_the_adversarys_span_holds_only_the_sum_where_honest_survivors_are_connected() -> None:
    found = spans(degree=6, threshold=4)  # three colluders never have four shares
    assert all(basis == parts for basis, parts in found)
    assert sum(parts == 1 for _, parts in found) >= 10


def test_the_span_test_finds_a_degree_or_a_threshold_that_is_too_small() -> None:
    """Planted: with one neighbour each the graph falls apart; with a threshold of one, colluders open secrets."""
    apart = spans(degree=1, threshold=1)
    assert sum(parts > 1 for _, parts in apart) >= 6
    assert any(basis > 1 for basis, _ in apart)
    assert any(basis > parts for basis, parts in spans(degree=6, threshold=1))


def test_the_program_masks_with_neighbours_and_nobody_else() -> None:
    """Who drew whom, told by the keys that each holder masks with; a pair has one mask, known to both."""
    among = Among(12, c=11, degree=3, threshold=2)
    among.start()
    among.agree()
    for k in among.roster:
        drawn_by = {j for j in among.roster if k in among.chosen[j]}
        assert set(among.holders[k]._blocks[0].keys) == {k} | drawn_by | set(among.chosen[k])
        sent = among.holders[k].mask(0, to_words(vectors(12, 1)[k]))
        assert set(sent.sealed) == set(among.chosen[k])


# ---- the command


def test_a_sum_through_messages_is_exact_above_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "COMPLETE_UP_TO", 39)
    monkeypatch.setattr(neighbours, "GRAPH_BITS", 8)
    drawn = Neighbourhood.of(40, 4, 34, bits=8)
    found = one_sum(40, colluders=4, parameters=11, neighbours=drawn)
    assert (found.holders, found.survivors, found.neighbours) == (40, 38, drawn)


@pytest.mark.slow
def test_a_sum_of_1001_holders_with_real_keys_is_exact() -> None:
    found = one_sum(1_001, colluders=100, parameters=100)
    assert found.neighbours == Neighbourhood.of(1_001, 100, 901)
    assert found.survivors == 1_001 - 51
