"""Noise that protects what a client shares."""

from privfair.mechanisms.count_release import CountNoise
from privfair.mechanisms.entropy import Entropy, SeededEntropy, SystemEntropy
from privfair.mechanisms.noise import GaussianNoise, LaplaceNoise, Noise
from privfair.mechanisms.score_release import ScoreNoise

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
