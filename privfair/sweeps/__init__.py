"""Many runs at once: grids of runs, a journal that survives a kill, frontiers, and the paper's experiments."""

from privfair.sweeps.carrying_out import Sweep, carry_out
from privfair.sweeps.jobs import Grid, Job
from privfair.sweeps.pareto import hypervolume, is_efficient
from privfair.sweeps.runner import run_many

__all__ = ["Grid", "Job", "Sweep", "carry_out", "hypervolume", "is_efficient", "run_many"]
