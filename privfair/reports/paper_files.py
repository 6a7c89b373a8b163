"""claims.md: what a reproduction says about each claim of the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from privfair.storage import write_bytes


def write_claims(about: Mapping[str, Any], claims: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """The claims with verdicts, numbers and rules, and what the runs were."""
    runs = about["runs"]
    failed = f", {runs['failed']} failed" if runs["failed"] else ""
    again = f", {runs['continued']} of them from an earlier call" if runs["continued"] else ""
    lines = [
        f"# {about['title']}",
        "",
        f"Rychener, Kuhn & Hu (AISTATS 2025), {about['source']}. Command: `{about['command']}`.",
        f"{runs['done']} of {runs['all']} runs{failed}{again}; {runs['seconds']:.0f} s of computing, "
        f"{about['seconds']:.0f} s on the clock.",
        "",
        "| claim of the paper | our runs | numbers | decided by |",
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
        *(f"- {note}" for note in about["notes"]),
        *(f"- failed: {failure}" for failure in about["failures"]),
    ]  # fmt: skip
    write_bytes(path, ("\n".join(lines).rstrip() + "\n").encode())
    return path


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
