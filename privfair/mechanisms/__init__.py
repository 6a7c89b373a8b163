"""Noise that protects what a client shares."""

from privfair.mechanisms.noise import GaussianNoise, LaplaceNoise, Noise

__all__ = ["GaussianNoise", "LaplaceNoise", "Noise"]
