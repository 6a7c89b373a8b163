"""The tables of a sweep: summary.csv, and results.parquet where pyarrow is installed."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from privfair.storage import write_bytes
from privfair.sweeps.points import table_columns
from privfair.sweeps.rows import COLUMNS, Row

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
    """A table with its header, also where it has no lines."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    write_bytes(path, text.getvalue().encode())
    return path


def write_parquet(rows: Sequence[Row], path: Path) -> Path | None:
    """All runs, typed; None where pyarrow is not installed."""
    if find_spec("pyarrow") is None:
        return None
    import pandas as pd

    buffer = io.BytesIO()
    pd.DataFrame([{name: row.get(name) for name in COLUMNS} for row in rows]).to_parquet(buffer, index=False)
    write_bytes(path, buffer.getvalue())
    return path
