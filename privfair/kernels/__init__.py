"""Kernels on scores, alone and with the noise that privacy puts on them, and what is computed with them."""

from privfair.kernels.base import Kernel, NoDeconvolution, NoisyKernel, SumKernel
from privfair.kernels.families import (
    EnergyKernel,
    GaussianKernel,
    LaplaceKernel,
    MaternKernel,
    RationalQuadraticKernel,
)
from privfair.kernels.mmd import Estimate, mmd2, mmd2_estimate, mmd2_from_noisy
from privfair.kernels.witness import Witness, witness

__all__ = [
    "EnergyKernel",
    "Estimate",
    "GaussianKernel",
    "Kernel",
    "LaplaceKernel",
    "MaternKernel",
    "NoDeconvolution",
    "NoisyKernel",
    "RationalQuadraticKernel",
    "SumKernel",
    "Witness",
    "mmd2",
    "mmd2_estimate",
    "mmd2_from_noisy",
    "witness",
]
