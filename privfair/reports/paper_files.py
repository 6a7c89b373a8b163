"""claims.md: what an experiment says about each claim of the paper, or about what was expected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from privfair.storage import write_bytes


def write_claims(
    about: Mapping[str, Any], claims: Sequence[Mapping[str, Any]], areas: Mapping[str, Any] | None, path: Path
) -> Path:
    """The claims with verdicts, numbers and rules, the areas of the frontiers if there are any, and what was run."""
    runs = about["runs"]
    failed = f", {runs['failed']} failed" if runs["failed"] else ""
    again = f", {runs['continued']} of them from an earlier call" if runs["continued"] else ""
    lines = [
        f"# {about['title']}",
        "",
        f"{_origin(about)} Command: `{about['command']}`.",
        f"{runs['done']} of {runs['all']} runs{failed}{again}; {runs['seconds']:.0f} s of computing, "
        f"{about['seconds']:.0f} s on the clock.",
        "",
        f"| {'claim of the paper' if about['paper'] else 'expectation'} | our runs | numbers | decided by |",
        "|---|---|---|---|",
        *(
            f"| {_cell(c['claim'])} | **{c['outcome']}** | {_cell(c['numbers'])} | {_cell(c['how'])} |"
            for c in claims
        ),
        "",
        "Differences are means over seeds, paired, with 95% t intervals; areas are hypervolumes with bootstrap "
        "intervals over seeds. Confirmed: the whole interval agrees with the claim; not confirmed: none of it does; "
        "undecided: a part of it does.",
        "",
        *(_areas(areas) if areas and areas["reference"] else []),
        *(f"- {note}" for note in about["notes"]),
        *(f"- failed: {failure}" for failure in about["failures"]),
    ]  # fmt: skip
    write_bytes(path, ("\n".join(lines).rstrip() + "\n").encode())
    return path


def _origin(about: Mapping[str, Any]) -> str:
    if about["paper"]:
        return f"Rychener, Kuhn & Hu (AISTATS 2025), {about['source']}."
    return "Beyond Rychener, Kuhn & Hu (AISTATS 2025); the claims are what was expected of it."


def _areas(areas: Mapping[str, Any]) -> list[str]:
    """The table of areas."""
    corner = areas["reference"]
    return [
        "| frontier | area it dominates | 95% interval | to the first | 95% interval |",
        "|---|---|---|---|---|",
        *(
            f"| {_cell(a['series'])} | {a['value']:.5f} | {_interval(a['interval'])} | "
            f"{a['difference_to_first']:+.5f} | {_interval(a['difference_interval'], '+')} |"
            for a in areas["series"]
        ),
        "",
        f"Areas are measured from accuracy {corner['accuracy']:.4f}, unfairness {corner['unfairness']:.4f} "
        f"({corner['origin']}).",
        "",
    ]


def _interval(interval: tuple[float, float] | None, sign: str = "") -> str:
    return "–" if interval is None else f"{interval[0]:{sign}.5f} … {interval[1]:{sign}.5f}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
