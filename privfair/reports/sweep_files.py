"""The files that a sweep writes beside its figures: summary.csv, areas.csv, results.parquet and claims.md."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from privfair.sweeps.frontiers import table_columns
from privfair.sweeps.journal import COLUMNS, Row
from privfair.util import write_bytes

AREAS = ("series", "area", "low", "high", "difference_to_first", "difference_low", "difference_high")


def write_summary(table: Sequence[dict[str, Any]], path: Path, *, quality: str) -> Path:
    """Means and standard errors, one line per point."""
    return _write(table, table_columns(quality), path)


def write_areas(areas: Mapping[str, Any], path: Path) -> Path:
    """The areas of all frontiers, one line each."""
    lines = []
    for area in areas["series"]:
        low, high = area["interval"] or (None, None)
        least, most = area["difference_interval"] or (None, None)
        lines.append(
            {
                "series": area["series"], "area": area["value"], "low": low, "high": high,
                "difference_to_first": area["difference_to_first"], "difference_low": least, "difference_high": most,
            }
        )  # fmt: skip
    return _write(lines, AREAS, path)


def _write(table: Sequence[dict[str, Any]], columns: Sequence[str], path: Path) -> Path:
    """A table with its header, even without lines."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    write_bytes(path, text.getvalue().encode())
    return path


def write_parquet(rows: Sequence[Row], path: Path) -> Path | None:
    """All runs with typed columns; None if pyarrow is not installed."""
    if find_spec("pyarrow") is None:
        return None
    import pandas as pd

    buffer = io.BytesIO()
    pd.DataFrame([{name: row.get(name) for name in COLUMNS} for row in rows]).to_parquet(buffer, index=False)
    write_bytes(path, buffer.getvalue())
    return path


def write_claims(
    about: Mapping[str, Any], claims: Sequence[Mapping[str, Any]], areas: Mapping[str, Any] | None, path: Path
) -> Path:
    """claims.md: every claim with verdict, numbers and rule, the areas of the frontiers if any, and what was run."""
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
        *(_areas_of_frontiers(areas) if areas and areas["reference"] else []),
        *(f"- {note}" for note in about["notes"]),
        *(f"- failed: {failure}" for failure in about["failures"]),
    ]  # fmt: skip
    write_bytes(path, ("\n".join(lines).rstrip() + "\n").encode())
    return path


def _origin(about: Mapping[str, Any]) -> str:
    if about["paper"]:
        return f"Rychener, Kuhn & Hu (AISTATS 2025), {about['source']}."
    return "Beyond Rychener, Kuhn & Hu (AISTATS 2025); the claims are what was expected of it."


def _areas_of_frontiers(areas: Mapping[str, Any]) -> list[str]:
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
