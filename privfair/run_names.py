"""The names of runs in ledgers: when it began, at random, what an audit must say of it, how the data are divided."""

from __future__ import annotations

from collections.abc import Iterable

from accountant.errors import Refused

_INFERRED, _SHARES = "inferred", "shares"


def run_name(beginning: str, division: str, *, inferred: bool, shares: bool) -> str:
    """What an audit must say of the run is in its name.

    inferred: the schema was taken from the records, so nothing is claimed. shares: every client added a part of the
    noise, and the ledger has that of the sum.
    """
    marks = [mark for mark, is_so in ((_INFERRED, inferred), (_SHARES, shares)) if is_so]
    return "-".join((beginning, *marks, division))


def beginning_of(run: str) -> str:
    """What was given as beginning."""
    return _parts(run)[0]


def division_of(run: str) -> str:
    """The digest of how the data are divided."""
    return run.rpartition("-")[2]


def has_inferred_schema(run: str) -> bool:
    """Whether the name says so."""
    return _INFERRED in _parts(run)[1]


def has_noise_in_shares(run: str) -> bool:
    """Whether the name says so."""
    return _SHARES in _parts(run)[1]


def require_whole_noise(dataset: str, runs: Iterable[str]) -> None:
    """Raise if one of these runs used distributed noise: no budget can count it."""
    shared = [run for run in runs if has_noise_in_shares(run)]
    if shared:
        raise Refused(
            f"Runs on {dataset!r} had their noise in shares (privacy.distributed_noise), the first {shared[0]}. The "
            "ledger has the noise of whole sums, and the server with one client met less of it: a budget would count "
            "too little. Data with a budget must never have been used with noise in shares."
        )


def _parts(run: str) -> tuple[str, list[str]]:
    """The beginning, and the marks."""
    left, marks = run.rpartition("-")[0], []
    for mark in (_SHARES, _INFERRED):
        if left.endswith(f"-{mark}"):
            left = left.removesuffix(f"-{mark}")
            marks.append(mark)
    return left, marks
