"""Noise that protects what a client shares."""

from privfair.mechanisms.count_release import CountNoise
from privfair.mechanisms.entropy import Entropy, SeededEntropy, SystemEntropy
from privfair.mechanisms.grid_noise import ScoreNoise
from privfair.mechanisms.noise import GaussianNoise, LaplaceNoise, Noise

__all__ = [
    "CountNoise",
    "Entropy",
    "GaussianNoise",
    "LaplaceNoise",
    "Noise",
    "ScoreNoise",
    "SeededEntropy",
    "SystemEntropy",
]
