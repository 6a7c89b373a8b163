"""Checkpoints: what one costs late in a long run, over what it costs at its beginning."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure import Result
from privfair.config import Config
from privfair.runs.assembly import build
from privfair.runs.folder import Checkpoint, RunDirectory
from privfair.runs.loop import run as run_rounds

ROUNDS, EARLY, WINDOW = 2_000, 20, 21


class Timed(RunDirectory):
    """Keeps the seconds of every checkpoint, and when it was there."""

    def __init__(self, path: Path) -> None:
        """No checkpoint yet."""
        super().__init__(path)
        self.took: list[float] = []
        self.there: list[float] = []

    def write_checkpoint(self, checkpoint: Checkpoint) -> None:
        """As it is, and timed."""
        start = time.perf_counter()
        super().write_checkpoint(checkpoint)
        self.there.append(time.perf_counter())
        self.took.append(self.there[-1] - start)


def run() -> list[Result]:
    """Medians over the rounds around the 20th, and over the last ones."""
    config = Config.build(
        {
            "data": {"clients": 3, "records": 60},
            "federation": {"rounds": ROUNDS, "method": "fedavg"},
            "run": {"evaluate_every": 1},
        }
    )
    with TemporaryDirectory() as folder:
        directory = Timed(RunDirectory.create(Path(folder) / "run", config).path)
        run_rounds(build(config), directory)
    rounds = [after - before for before, after in zip(directory.there, directory.there[1:], strict=False)]
    return [
        Result(f"{what} at round {ROUNDS:,} over that at round {EARLY}", _growth(times), 1.5, "×", at_least=False)
        for what, times in (("time of a checkpoint", directory.took), ("time of a whole round", rounds))
    ]


def _growth(times: list[float]) -> float:
    first = EARLY - WINDOW // 2
    return statistics.median(times[-WINDOW:]) / statistics.median(times[first : first + WINDOW])


if __name__ == "__main__":
    for result in run():
        print(result)
