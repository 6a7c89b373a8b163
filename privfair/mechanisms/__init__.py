"""Noise that protects what a client shares."""

from privfair.mechanisms.count_release import CountNoise
from privfair.mechanisms.entropy import Entropy, SeededEntropy, SystemEntropy
from privfair.mechanisms.score_release import GaussianNoise, LaplaceNoise, Noise, ScoreNoise

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
