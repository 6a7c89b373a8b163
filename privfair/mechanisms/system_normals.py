"""Standard normals from the operating system's random bits."""

from __future__ import annotations

import os

import numpy as np
from scipy.special import ndtri

from privfair.arrays import FloatArray

_SUMMED = 4
_BLOCK = 1 << 14  # normals at a time: the intermediate numbers stay in the cache


def system_normals(size: int) -> FloatArray:
    """Independent N(0, 1) draws, each the sum of four inverse-CDF draws, divided by 2.

    Each of the four takes 64 fresh bits: a sign, and a uniform number in (0, 1/2] with 62 bits, so that the tails
    reach 9.1 standard deviations.

    What the sum is for: one inverse-CDF draw can be inverted, and the floating-point numbers that a sum "value + draw"
    cannot reach give the value away (Mironov 2012). A sum of several independent draws leaves an attacker only the
    search through what could have been drawn, exponential in their number (Holohan, Braghin 2021, arXiv 2107.10138;
    Opacus' secure_mode adds four for this reason and reckons with 2^159 steps). What it is not: a proof. The ε of
    Gaussian noise is that of real numbers; the law of the rounded floating-point result is not bounded here, and the
    time a draw takes is not covered. Integer noise is exact.
    """
    result = np.empty(size)
    for start in range(0, size, _BLOCK):
        count = min(_BLOCK, size - start)
        bits = np.frombuffer(os.urandom(8 * _SUMMED * count), dtype=np.int64)
        centred = (bits >> 1) + 0.5  # halves between −2^62 and 2^62, symmetric around 0, never 0
        draws = np.copysign(ndtri(np.abs(centred) * 2.0**-63), centred)
        result[start : start + count] = draws.reshape(_SUMMED, count).sum(axis=0) / 2.0
    return result
