"""CSV files with many columns: four times the columns must not take much more than four times as long.

Loading a file, and looking at its columns as `privfair init` does: 8,000 columns against 2,000, with as many records.
Timed by the processor time they take, since a busy machine would otherwise decide. A search through all names for every
column made loading 7.3 times as long.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure import Result
from privfair.cli.init import configuration
from privfair.datasets import load
from privfair.datasets.guess import guess
from privfair.datasets.number_format import find_format
from privfair.datasets.table import read_table

FEW, MANY = 2_000, 8_000
RECORDS = 60
REPEATS = 3
SLACK = 1.5  # larger tables fit caches worse


def run() -> list[Result]:
    with TemporaryDirectory() as folder:
        few, many = (written(Path(folder) / f"{columns}.csv", columns) for columns in (FEW, MANY))
        ratios = {what: seconds(work, many) / seconds(work, few) for what, work in WORK.items()}
    name = f"times longer for {MANY // FEW} × the columns"
    return [Result(f"{what}: {name}", ratio, MANY / FEW * SLACK, "×", at_least=False) for what, ratio in ratios.items()]


def written(path: Path, columns: int) -> Path:
    """A file with so many columns of numbers, a label, a group and a client."""
    draw = random.Random(columns)
    rows = [[*(f"c{i}" for i in range(columns)), "sex", "hired", "branch"]]
    for number in range(RECORDS):
        values = [str(draw.randint(0, 99)) for _ in range(columns)]
        rows.append([*values, "FM"[number % 2], str(number % 3 % 2), "ns"[number % 5 > 2]])
    path.write_text("\n".join(map(",".join, rows)) + "\n", encoding="utf-8")
    return path


def loaded(path: Path) -> None:
    load("csv", path=str(path), label="hired", sensitive="sex", client="branch")


def looked_at(path: Path) -> None:
    _, table = find_format(read_table(path))
    configuration(str(path), {}, guess(table))


WORK = {"loading": loaded, "privfair init": looked_at}


def seconds(work: Callable[[Path], None], path: Path) -> float:
    """Processor time, the least of several."""
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        work(path)
        times.append(time.process_time() - start)
    return min(times)
