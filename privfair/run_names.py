"""The names of runs in ledgers: when it began, at random, [inferred,] a digest of how the data are divided."""

from __future__ import annotations

_INFERRED = "inferred"


def run_name(beginning: str, division: str, *, inferred: bool) -> str:
    """`inferred`: the schema was taken from the records, so nothing is claimed; an audit can tell by the name."""
    return "-".join((beginning, *((_INFERRED,) if inferred else ()), division))


def beginning_of(run: str) -> str:
    """What was given as beginning."""
    return run.rpartition("-")[0].removesuffix(f"-{_INFERRED}")


def division_of(run: str) -> str:
    """The digest of how the data are divided."""
    return run.rpartition("-")[2]


def has_inferred_schema(run: str) -> bool:
    """Whether the name says so."""
    return run.rpartition("-")[0].endswith(f"-{_INFERRED}")
