"""The stacked engine: many runs and all their clients as one batched tensor program."""

from privfair.backends.stacked.backend import Stacked
from privfair.backends.stacked.runs import build_stacked, run_stacked

__all__ = ["Stacked", "build_stacked", "run_stacked"]
