"""Independent ways to the same numbers: quadrature in high precision, matrices, plain sums."""

from __future__ import annotations

from typing import Any

import mpmath as mp
import numpy as np

DIGITS = 40


def mp_profile(kernel: Any) -> Any:
    """v(d) of a noiseless kernel in mpmath, written from the textbook formula."""
    name = type(kernel).__name__
    ell = mp.mpf(kernel.bandwidth) if hasattr(kernel, "bandwidth") else None
    if name == "GaussianKernel":
        return lambda d: mp.exp(-(d**2) / (2 * ell**2))
    if name == "LaplaceKernel":
        return lambda d: mp.exp(-abs(d) / ell)
    if name == "EnergyKernel":
        return lambda d: -abs(d) / 2
    if name == "MaternKernel":
        a = mp.sqrt(2 * mp.mpf(kernel.nu)) / ell
        if kernel.nu == 1.5:
            return lambda d: (1 + a * abs(d)) * mp.exp(-a * abs(d))
        return lambda d: (1 + a * abs(d) + (a * d) ** 2 / 3) * mp.exp(-a * abs(d))
    if name == "RationalQuadraticKernel":
        alpha = mp.mpf(kernel.alpha)
        return lambda d: (1 + d**2 / (2 * alpha * ell**2)) ** (-alpha)
    raise TypeError(name)


def mp_density(noise: Any) -> Any:
    """The noise's density in mpmath."""
    scale = mp.mpf(noise.scale)
    if type(noise).__name__ == "GaussianNoise":
        return lambda x: mp.exp(-(x**2) / (2 * scale**2)) / (scale * mp.sqrt(2 * mp.pi))
    return lambda x: mp.exp(-abs(x) / scale) / (2 * scale)


def convolution_by_quadrature(profile: Any, density: Any, d: float, scales: tuple[float, ...]) -> Any:
    """∫ v(d − x) p(x) dx, the line cut at every kink and at multiples of every scale."""
    with mp.workdps(DIGITS):
        d = mp.mpf(d)
        cuts = {mp.mpf(0), d}
        for centre in (mp.mpf(0), d):
            for scale in scales:
                for multiple in (1, 4, 12, 40, 100):
                    cuts |= {centre - multiple * scale, centre + multiple * scale}
        return mp.quad(lambda x: profile(d - x) * density(x), [-mp.inf, *sorted(cuts), mp.inf])


def mmd2_by_matrix(x: np.ndarray, y: np.ndarray, kernel: Any, *, biased: bool) -> float:
    """MMD² from the three n×n matrices."""
    xx, yy, xy = kernel(x[:, None], x[None, :]), kernel(y[:, None], y[None, :]), kernel(x[:, None], y[None, :])
    if biased:
        return float(xx.mean() + yy.mean() - 2 * xy.mean())
    n, m = x.size, y.size
    off_x, off_y = xx.sum() - np.trace(xx), yy.sum() - np.trace(yy)
    return float(off_x / (n * (n - 1)) + off_y / (m * (m - 1)) - 2 * xy.mean())


def witness_by_sums(
    y0: np.ndarray, y1: np.ndarray, kernel: Any, z: np.ndarray, order: int, w0: np.ndarray, w1: np.ndarray
) -> np.ndarray:
    """C or a derivative of it, term by term."""
    return kernel.profile(z[:, None] - y0, order) @ w0 - kernel.profile(z[:, None] - y1, order) @ w1
