"""Many runs at once: grids of runs, a journal that survives a kill, frontiers, and the paper's experiments."""

from privfair.sweeps.frontiers import hypervolume, is_efficient
from privfair.sweeps.jobs import Grid, Job
from privfair.sweeps.run_sweep import Sweep, carry_out, run_many

__all__ = ["Grid", "Job", "Sweep", "carry_out", "hypervolume", "is_efficient", "run_many"]
