"""The experiments of Rychener, Kuhn & Hu (AISTATS 2025), and some beyond them: runs, claims, figures."""

from privfair.sweeps.paper.claims import Experiment
from privfair.sweeps.paper.private import PRIVATELY, SECURE_SUMS, TRACKERS
from privfair.sweeps.paper.real_data import COMMUNITIES, COMPAS, CONVERGENCE, SAMPLES
from privfair.sweeps.paper.synthetic import HETEROGENEITY, HETEROGENEITY_SIZES, SYNTHETIC

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        SYNTHETIC, COMMUNITIES, COMPAS, SAMPLES, CONVERGENCE, HETEROGENEITY, HETEROGENEITY_SIZES, PRIVATELY,
        *TRACKERS, *SECURE_SUMS,
    )
}  # fmt: skip

__all__ = ["EXPERIMENTS", "Experiment"]
