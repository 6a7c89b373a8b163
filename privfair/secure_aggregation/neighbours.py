"""Who masks with whom: everybody up to 1,000 holders, and few neighbours of each above, who draws them itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from accountant.errors import InputError

SILENT: Final = 20  # of so many holders one may fall silent, and a sum among neighbours still opens
GRAPH_BITS: Final = 80  # neighbours are so many that a graph which is not safe comes with probability 2⁻⁸⁰ or less


@dataclass(frozen=True)
class Neighbourhood:
    """How many neighbours every holder draws among more than 1,000, and how many of their shares open a secret.

    The graph is that of Bell, Bonawitz, Gascón, Lepoint and Raykova 2020 (eprint 2020/704), in the form in which each
    holder draws its own neighbours: `degree` of the others, from its own randomness. It shares its secrets with those,
    and has a pairwise mask with those and with everybody who drew it. No choice of another holder, and nothing that a
    server shows, changes which honest holders an honest holder draws.

    A sum shows nothing but itself if, for everybody alike, the same holders are in it, and who dropped out did not do
    so because of the graph. (A server that declares a holder's neighbours dead can isolate it.) Then two things must
    hold, but for a probability of 2⁻⁸⁰ in a block of sums:

    - no honest holder draws `threshold` colluders: X colluders among `degree` of n − 1 are hypergeometric;
    - honest holders in the sum, c − k of them or more, are connected by pairwise masks: in every division of them into
      s and the rest, somebody drew somebody on the other side.

    And it opens, but for the same probability, if 5% of all holders fall silent at random: `threshold` others are left.
    """

    degree: int
    threshold: int

    def __post_init__(self) -> None:
        """Refuse a threshold that can never be met."""
        if not 0 < self.threshold <= self.degree:
            raise InputError("threshold", f"must be between 1 and the degree, {self.degree}", self.threshold)

    @staticmethod
    def of(holders: int, colluders: int, smallest: int, bits: int = GRAPH_BITS) -> Neighbourhood:
        """The smallest degree that does for a cohort, and the smallest threshold for it.

        Tails of the hypergeometric law are sums of whole numbers: everybody finds the same.
        """
        return _neighbourhood(holders, colluders, smallest, bits)


@lru_cache(maxsize=16)
def _neighbourhood(n: int, k: int, c: int, bits: int) -> Neighbourhood:
    silent = -(-n // SILENT)
    for degree in range(2, n):
        ways = math.comb(n - 1, degree)
        safe = _least(n - 1, k, degree, ways, (n - k) << (bits + 1))  # one half of 2⁻⁸⁰; the other is connection's
        open_below = _least(n - 1, silent, degree, ways, n << bits)  # so many silent neighbours nobody has
        if safe <= degree - open_below + 1 and _log2_of_a_cut(n, c - k, degree) <= -(bits + 1):
            return Neighbourhood(degree, safe)
    remedy = "Take fewer aggregation.colluders."
    raise InputError("aggregation.colluders", "must leave each holder enough honest neighbours", k, remedy)


def _least(others: int, marked: int, drawn: int, ways: int, factor: int) -> int:
    """The smallest x with factor · P[x or more of the drawn are marked] ≤ 1, exactly; `drawn` + 1 if there is none."""
    tail = 0
    for x in range(drawn, -1, -1):
        tail += math.comb(marked, x) * math.comb(others - marked, drawn - x)
        if factor * tail > ways:
            return x + 1
    return 0


def _log2_of_a_cut(n: int, m: int, degree: int) -> float:
    """Of a bound on the probability that m honest holders in a sum of n are not all connected.

    Over all divisions into s and m − s holders: none of the s draws one of the m − s, and none of those one of the s.
    """

    def none_of(avoided: int) -> float:  # log P[a holder draws none of these]
        if n - 1 - avoided < degree:
            return -math.inf
        return _log_comb(n - 1 - avoided, degree) - _log_comb(n - 1, degree)

    terms = [_log_comb(m, s) + s * none_of(m - s) + (m - s) * none_of(s) for s in range(1, m // 2 + 1)]
    most = max(terms, default=-math.inf)
    if most == -math.inf:
        return most
    return (most + math.log(math.fsum(math.exp(term - most) for term in terms))) / math.log(2)


def _log_comb(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


class Graph:
    """Who has shares of whose secrets, on one roster: of everybody's, or those that a holder drew have its shares."""

    def __init__(self, roster: Iterable[int], chosen: Mapping[int, Sequence[int]] | None) -> None:
        """`chosen`: the neighbours that each drew; None where everybody is everybody's."""
        self.roster = frozenset(roster)
        self._to: dict[int, list[int]] | None = None
        if chosen is not None:
            self._to = {k: [j for j in chosen[k] if j in self.roster] for k in self.roster}
            self._of: dict[int, list[int]] = {k: [] for k in self.roster}
            for k in sorted(self._to):
                for j in self._to[k]:
                    self._of[j].append(k)

    def receivers(self, holder: int) -> Iterable[int]:
        """Who has shares of this holder's secrets."""
        return self.roster if self._to is None else self._to[holder]

    def givers(self, holder: int) -> Iterable[int]:
        """Whose shares this holder has."""
        return self.roster if self._to is None else self._of[holder]

    def neighbours(self, holder: int) -> frozenset[int]:
        """With whom it has pairwise masks."""
        return self.roster - {holder} if self._to is None else frozenset(self._to[holder]) | set(self._of[holder])
