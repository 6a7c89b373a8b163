"""The laws of both sources of randomness. A correct sampler fails one such test with probability 1e-6."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, kstest, norm

from accountant.errors import InputError
from privfair.mechanisms import entropy as module
from privfair.mechanisms.entropy import Entropy, SeededEntropy, SystemEntropy, _gaussian, _laplace
from tests.mechanisms.laws import FALSE_ALARM, chi_square, fits, mass


@pytest.fixture(params=["system", "seeded"])
def entropy(request: pytest.FixtureRequest) -> Entropy:
    return SystemEntropy() if request.param == "system" else SeededEntropy(np.random.default_rng(20260501))


@pytest.mark.parametrize("scale", [0.4, 3.0, 37.3])
@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_integer_noise_has_the_law_of_its_event(entropy: Entropy, kind: str, scale: float) -> None:
    draw = entropy.discrete_gaussian if kind == "gaussian" else entropy.discrete_laplace
    draws = draw(scale, 12_000)
    assert draws.dtype == np.int64
    assert fits(draws, kind, scale)
    assert not fits(draws, kind, scale * 1.3)  # the test can tell


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_integer_noise_of_large_and_tiny_scale(entropy: Entropy, kind: str) -> None:
    draw = entropy.discrete_gaussian if kind == "gaussian" else entropy.discrete_laplace
    assert not draw(1e-3, 200).any()  # mass at 0 is 1 − 2e^(−1000) or more
    assert draw(5.0, 0).shape == (0,)
    large = draw(2.0**40, 3000) / 2.0**40
    deviation, kurtosis = (1.0, 3.0) if kind == "gaussian" else (math.sqrt(2), 6.0)
    # The variance of n draws has standard error variance·sqrt((kurtosis − 1)/n). Seven of them: long tails.
    assert large.var() == pytest.approx(deviation**2, abs=7 * deviation**2 * math.sqrt((kurtosis - 1) / 3000))


@pytest.mark.parametrize("scale", [0.7, 2.0, 51.2])
def test_opendp_means_the_same_by_scale(scale: float) -> None:
    """Its own privacy maps: ρ = Δ²/2σ² and ε = Δ/b, Δ = 3, are those of the masses exp(−k²/2σ²) and exp(−|k|/b)."""
    assert _gaussian(scale).map(3) == pytest.approx(9 / (2 * scale**2), rel=1e-12)  # type: ignore[attr-defined]
    assert _laplace(scale).map(3) == pytest.approx(3 / scale, rel=1e-12)  # type: ignore[attr-defined]


def test_the_masses_are_those_of_the_definition() -> None:
    """The oracle of this file against closed forms: tanh(1/2b) e^(−|k|/b), and Poisson summation."""
    k, p = mass("laplace", 3.0)
    assert p == pytest.approx(math.tanh(1 / 6) * np.exp(-np.abs(k) / 3.0), rel=1e-9)
    k, p = mass("gaussian", 3.0)
    assert p == pytest.approx(norm.pdf(k, scale=3.0), rel=1e-9)  # off by 2e^(−2π²σ²), 1e-77


def test_normals(entropy: Entropy) -> None:
    draws = entropy.normal(200_000)
    assert draws.dtype == np.float64
    assert kstest(draws, "norm").pvalue > FALSE_ALARM
    error = 5 * math.sqrt(2 / draws.size)  # 5 standard errors: 6e-7
    assert draws.var() == pytest.approx(1.0, abs=error)
    assert entropy.normal(0).shape == (0,)
    beyond = int((np.abs(draws) > 3).sum())
    assert binomtest(beyond, draws.size, 2 * norm.sf(3)).pvalue > FALSE_ALARM


def test_normals_of_blocks_are_independent() -> None:
    """Neighbouring draws, and draws one block apart, are uncorrelated: 5 standard errors of a correlation, 1/√n."""
    draws = SystemEntropy().normal(100_000)
    for lag in (1, 2, 3, 1 << 14):
        assert abs(np.mean(draws[lag:] * draws[:-lag])) < 5 / math.sqrt(draws.size - lag)


@pytest.mark.parametrize("rate", [0.003, 0.25, 0.9])
def test_poisson_mask_has_its_rate(entropy: Entropy, rate: float) -> None:
    taken = entropy.poisson_mask(100_000, rate)
    assert taken.dtype == np.bool_
    assert binomtest(int(taken.sum()), taken.size, rate).pvalue > FALSE_ALARM


@given(st.floats(min_value=0, max_value=1, exclude_min=True, exclude_max=True))
def test_the_rate_is_never_exceeded(rate: float) -> None:
    """Exactly ⌊rate·2^64⌋ of the 2^64 words are taken: the last of them and the first that is not."""
    taken = math.floor(Fraction(rate) * 2**64)
    words = [word for word in (0, taken - 1, taken, 2**64 - 1) if word >= 0]
    found = module._below(np.array(words, dtype=np.uint64), rate)
    assert found.tolist() == [word < taken for word in words]


def test_rate_1_takes_everybody(entropy: Entropy) -> None:
    assert entropy.poisson_mask(1000, 1.0).all()
    assert module._below(np.array([2**64 - 1], dtype=np.uint64), 1.0).all()


def test_every_order_is_equally_likely(entropy: Entropy) -> None:
    orders = list(itertools.permutations(range(4)))
    counts = dict.fromkeys(orders, 0)
    for _ in range(4800):
        counts[tuple(entropy.permutation(4).tolist())] += 1
    assert chi_square(list(counts.values()), [200.0] * 24) > FALSE_ALARM


def test_every_choice_is_equally_likely(entropy: Entropy) -> None:
    pairs = list(itertools.permutations(range(5), 2))
    counts = dict.fromkeys(pairs, 0)
    for _ in range(4000):
        counts[tuple(entropy.choice(5, 2).tolist())] += 1
    assert chi_square(list(counts.values()), [200.0] * 20) > FALSE_ALARM


@given(n=st.integers(0, 60), share=st.floats(0, 1))
def test_permutations_and_choices_are_what_they_say(n: int, share: float) -> None:
    for source in (SystemEntropy(), SeededEntropy(np.random.default_rng(n))):
        assert sorted(source.permutation(n).tolist()) == list(range(n))
        chosen = source.choice(n, int(share * n)).tolist()
        assert len(set(chosen)) == int(share * n)
        assert set(chosen) <= set(range(n))


def test_equal_keys_are_drawn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """An order by equal keys would keep the records' own order."""
    keys = iter([np.array([7, 7, 1], dtype=np.uint64), np.array([9, 8, 7], dtype=np.uint64)])
    monkeypatch.setattr(module, "system_words", lambda n: next(keys))
    assert SystemEntropy().permutation(3).tolist() == [2, 1, 0]


def test_a_seed_repeats_and_the_system_does_not() -> None:
    first, second = (SeededEntropy(np.random.default_rng(5)) for _ in range(2))
    for name, arguments in [
        ("poisson_mask", (50, 0.5)),
        ("permutation", (50,)),
        ("choice", (50, 20)),
        ("normal", (50,)),
        ("discrete_gaussian", (9.0, 50)),
        ("discrete_laplace", (9.0, 50)),
    ]:
        a, b = getattr(first, name)(*arguments), getattr(second, name)(*arguments)
        assert a.tobytes() == b.tobytes()
        system = SystemEntropy()  # 50 equal draws twice over: below 2^-50
        assert getattr(system, name)(*arguments).tobytes() != getattr(system, name)(*arguments).tobytes()


def test_only_the_system_may_claim() -> None:
    assert SystemEntropy().claim
    assert "keyed by it); OpenDP discrete samplers;" in SystemEntropy().description
    seeded = SeededEntropy(np.random.default_rng(0))
    assert not seeded.claim
    assert "no ε is claimed" in seeded.description


def test_wrong_input_is_named(entropy: Entropy) -> None:
    with pytest.raises(InputError, match=r"sampling_rate must be in \(0, 1\]; found 64. It is a probability, not a"):
        entropy.poisson_mask(3, 64)
    with pytest.raises(InputError, match=r"noise scale must be above 0; found 0. A release without noise draws none."):
        entropy.discrete_laplace(0, 3)
    with pytest.raises(InputError, match=r"noise scale must be at most 2\*\*40 steps; found 1e\+30. Count in coarser"):
        entropy.discrete_gaussian(1e30, 3)
    with pytest.raises(InputError, match=r"m must be at most 3; found 4. A unit is drawn at most once."):
        entropy.choice(3, 4)
    with pytest.raises(InputError, match=r"n must be a whole number of at least 0; found -1."):
        entropy.permutation(-1)
    with pytest.raises(InputError, match=r"size must be a whole number of at least 0; found 2.5."):
        entropy.normal(2.5)  # type: ignore[arg-type]
