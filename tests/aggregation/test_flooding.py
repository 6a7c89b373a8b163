from __future__ import annotations

import hashlib

import mpmath
import numpy as np
import pytest
from scipy import stats

from privfair.secure_aggregation.tenseal import BASE_SIGMA, SIGMA, _table, flood

SECRET = bytes(range(32))


def test_the_law_is_gaussian_of_sigma_2_to_the_28():
    """Kolmogorov–Smirnov at 1e-6: σ is so large that a discrete and a continuous Gaussian look alike."""
    found = flood(100_000, SECRET, b"one ciphertext")
    assert pytest.approx(2**28, rel=1e-3) == SIGMA
    assert stats.kstest(found / SIGMA, "norm").pvalue > 1e-6


def test_the_low_bits_are_uniform():
    """χ² over the residues modulo 64, at 1e-6: what lies beneath the noise must not show in its last digits."""
    counts = np.bincount(flood(100_000, SECRET, b"another") % 64, minlength=64)
    assert stats.chisquare(counts).pvalue > 1e-6


def test_the_table_is_the_discrete_gaussian():
    masses = np.diff(np.concatenate([[0], _table().astype(float), [2.0**64]])) / 2.0**64
    x = np.arange(-10 * BASE_SIGMA, 10 * BASE_SIGMA + 1)
    exact = np.exp(-(x**2) / (2 * BASE_SIGMA**2))
    exact /= exact.sum()
    assert len(masses) == len(x)
    # float64 differences of numbers up to 2⁶⁴ are good to 2¹² of 2⁶⁴
    assert np.abs(masses - exact).max() < 2.0**-50


def test_it_depends_on_secret_and_ciphertext_and_on_nothing_else():
    first = flood(50, SECRET, b"c")
    np.testing.assert_array_equal(flood(50, SECRET, b"c"), first)
    np.testing.assert_array_equal(flood(20, SECRET, b"c"), first[:20])
    assert not np.array_equal(flood(50, SECRET[::-1], b"c"), first)
    assert not np.array_equal(flood(50, SECRET, b"d"), first)


def test_the_same_numbers_on_every_machine():
    """Every client must get the same model: these were written down once, and follow from the law in mpmath."""
    found = flood(3, SECRET, b"ciphertext").tolist()
    assert found == [-10319279, -128800018, -148506190]
    seed = hashlib.blake2b(b"ciphertext", key=SECRET, digest_size=64, person=b"privfair flood").digest()
    stream = hashlib.shake_256(seed).digest(120)
    draws = [_inverse(int.from_bytes(stream[i : i + 8], "little")) for i in range(0, 120, 8)]
    assert found == [sum(32**i * x for i, x in enumerate(draws[j : j + 5])) for j in (0, 5, 10)]


def _inverse(uniform):
    """The least x with 2⁶⁴ P(X ≤ x) > uniform."""
    with mpmath.workdps(40):
        masses = [mpmath.exp(-mpmath.mpf(x * x) / (2 * BASE_SIGMA**2)) for x in range(10 * BASE_SIGMA + 1)]
        total, cumulative = 2 * mpmath.fsum(masses) - 1, mpmath.mpf(0)
        for x in range(-10 * BASE_SIGMA, 10 * BASE_SIGMA + 1):
            cumulative += masses[abs(x)]
            if mpmath.floor(cumulative / total * 2**64) > uniform:
                return x
    raise AssertionError("beyond the table")
