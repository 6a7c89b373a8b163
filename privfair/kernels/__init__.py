"""Kernels on scores, alone and with the noise that privacy puts on them, and what is computed with them."""

from privfair.kernels.base import Kernel, NoDeconvolution
from privfair.kernels.combination import SumKernel
from privfair.kernels.convolution import NoisyKernel
from privfair.kernels.energy import EnergyKernel
from privfair.kernels.gaussian import GaussianKernel
from privfair.kernels.laplace import LaplaceKernel
from privfair.kernels.matern import MaternKernel
from privfair.kernels.mmd import Estimate, mmd2, mmd2_estimate, mmd2_from_noisy
from privfair.kernels.rational_quadratic import RationalQuadraticKernel
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
