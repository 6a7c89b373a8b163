"""The experiments of Rychener, Kuhn & Hu (AISTATS 2025) and what goes beyond, a file each: runs, claims, figures."""

from privfair.sweeps.paper.claims import Experiment
from privfair.sweeps.paper.convergence import CONVERGENCE
from privfair.sweeps.paper.heterogeneity import HETEROGENEITY, HETEROGENEITY_SIZES
from privfair.sweeps.paper.private import PRIVATELY
from privfair.sweeps.paper.real_data import COMMUNITIES, COMPAS
from privfair.sweeps.paper.samples import SAMPLES
from privfair.sweeps.paper.synthetic import SYNTHETIC
from privfair.sweeps.paper.trackers import TRACKERS

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        SYNTHETIC, COMMUNITIES, COMPAS, SAMPLES, CONVERGENCE, HETEROGENEITY, HETEROGENEITY_SIZES, PRIVATELY,
        *TRACKERS,
    )
}  # fmt: skip

__all__ = ["EXPERIMENTS", "Experiment"]
