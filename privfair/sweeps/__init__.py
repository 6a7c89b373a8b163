"""Many runs at once: grids of runs, a journal that survives a kill, frontiers, and the paper's experiments."""

from privfair.sweeps.frontiers import hypervolume, is_efficient
from privfair.sweeps.jobs import Grid, Job
from privfair.sweeps.sweep import Sweep, run_many, run_sweep

__all__ = ["Grid", "Job", "Sweep", "hypervolume", "is_efficient", "run_many", "run_sweep"]
