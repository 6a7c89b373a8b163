"""Messages of fixed form: their length, their law before noise, what one record changes, and undoing the padding."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from accountant import Adjacency, DiscreteLaplace, FixedSizeSampled, InputError, PoissonSampled, spent
from privfair.kernels import EnergyKernel, GaussianKernel, LaplaceKernel
from privfair.mechanisms.entropy import SeededEntropy, SystemEntropy
from privfair.mechanisms.score_release import (
    Kind,
    ScoreNoise,
    fill_share,
    fixed_scores,
    fixed_scores_event,
    poisson_scores,
    poisson_scores_event,
    unpadding_weights,
)
from tests.mechanisms.laws import (
    FALSE_ALARM,
    Coupled,
    NoNoise,
    chi_square,
    fixed_message_law,
    mass,
    poisson_message_law,
)

NOISE = ScoreNoise("laplace", 1.0, low=-1.0, high=1.0, step=0.25)
SCORES = st.lists(st.floats(), max_size=30)


@settings(deadline=None)  # the first draw loads OpenDP
@given(SCORES, st.integers(1, 12), st.floats(0, 1, exclude_min=True), st.sampled_from(["gaussian", "laplace"]))
def test_a_message_has_one_form_whatever_the_data(scores: list[float], length: int, rate: float, kind: Kind) -> None:
    noise = ScoreNoise(kind, 0.7, low=-1.0, high=1.0, step=0.25)
    for entropy in (SystemEntropy(), SeededEntropy(np.random.default_rng(1))):
        for message in (
            poisson_scores(scores, length, rate, noise, entropy),
            fixed_scores(scores, length, noise, entropy),
        ):
            assert message.shape == (length,)
            assert message.dtype == np.float64
            steps = (message + 1.0) / 0.25
            assert np.all(np.isfinite(steps))
            assert np.array_equal(steps, np.rint(steps))


@given(SCORES, st.floats(), st.integers(1, 12), st.floats(0, 1, exclude_min=True), st.integers(0, 2**32))
def test_one_record_more_changes_at_most_one_entry_by_at_most_the_range(
    scores: list[float], new: float, length: int, rate: float, seed: int
) -> None:
    """Before noise, the other records' luck held fixed; and nothing at all changes unless the record is taken."""
    entropy = Coupled(np.random.default_rng(0), seed)
    without = poisson_scores(scores, length, rate, NOISE, entropy)
    with_it = poisson_scores([*scores, new], length, rate, NOISE, entropy)
    gone = Counter(without.tolist()) - Counter(with_it.tolist())
    come = Counter(with_it.tolist()) - Counter(without.tolist())
    assert gone.total() == come.total() <= 1
    assert all(abs(a - b) <= NOISE.high - NOISE.low for a in gone for b in come)
    if not entropy.poisson_mask(len(scores) + 1, rate)[-1]:
        assert not come


@given(st.lists(st.floats(), min_size=1, max_size=30), st.floats(), st.integers(1, 12), st.integers(0, 2**32))
def test_one_record_replaced_changes_at_most_one_entry_by_at_most_the_range(
    scores: list[float], new: float, length: int, seed: int
) -> None:
    entropy = Coupled(np.random.default_rng(0), seed)
    before = fixed_scores(scores, length, NOISE, entropy)
    after = fixed_scores([*scores[:-1], new], length, NOISE, entropy)
    changed = before != after
    assert changed.sum() <= 1
    assert np.all(np.abs(before - after) <= NOISE.high - NOISE.low)


@pytest.mark.parametrize(("records", "length", "rate"), [([0, 8, 2], 2, 0.4), ([0, 8, 8, 5], 2, 0.8), ([1], 3, 0.3)])
def test_messages_before_noise_have_the_law_of_the_definition(records: list[int], length: int, rate: float) -> None:
    """Against going through every sample, choice and order; false alarm 1e-6 each."""
    scores, runs = NOISE.from_grid(np.array(records)), 3000
    for law, release in [
        (
            poisson_message_law(records, length, rate, NOISE.middle_index),
            lambda entropy: poisson_scores(scores, length, rate, NOISE, entropy),
        ),
        (
            fixed_message_law(records, length, NOISE.middle_index),
            lambda entropy: fixed_scores(scores, length, NOISE, entropy),
        ),
    ]:
        entropy = NoNoise(np.random.default_rng(7))
        seen = Counter(tuple(NOISE.to_grid(release(entropy)).tolist()) for _ in range(runs))
        assert set(seen) <= set(law)
        if len(law) > 1:
            assert chi_square([seen[m] for m in law], [runs * p for p in law.values()]) > FALSE_ALARM


def test_noise_goes_on_pads_too_and_independently() -> None:
    """A message of nothing but pads: its entries are independent draws; 5 standard errors."""
    noise, entropy = ScoreNoise("gaussian", 1.0), SeededEntropy(np.random.default_rng(3))
    draws = np.array([poisson_scores([], 2, 0.5, noise, entropy) for _ in range(2000)]) - noise.middle
    assert draws.var(axis=0) == pytest.approx(1.0, abs=5 * math.sqrt(2 / 2000))
    assert abs((draws[:, 0] * draws[:, 1]).mean()) < 5 / math.sqrt(2000)


def test_events() -> None:
    assert poisson_scores_event(0.2, NOISE) == PoissonSampled(0.2, DiscreteLaplace(4.0, 8, step=0.25))
    replaced = DiscreteLaplace(4.0, 8, Adjacency.REPLACE_ONE, step=0.25)
    assert fixed_scores_event(3, 10, NOISE) == FixedSizeSampled(3, 10, replaced)
    assert fixed_scores_event(10, 10, NOISE) == fixed_scores_event(11, 10, NOISE) == replaced
    whole = spent(FixedSizeSampled(10, 10, replaced), 1e-6, "pld").epsilon
    assert spent(replaced, 1e-6, "pld").epsilon == whole > spent(fixed_scores_event(9, 10, NOISE), 1e-6, "pld").epsilon


@given(st.floats(0, 400), st.floats(1e-6, 1), st.integers(1, 60))
def test_fill_share_is_the_mean_of_the_truncated_binomial(count: float, rate: float, length: int) -> None:
    j = np.arange(round(count) + 1)
    expected = float((np.minimum(j, length) * binom.pmf(j, round(count), rate)).sum()) / length
    assert fill_share(count, rate, length) == pytest.approx(expected, rel=1e-9, abs=1e-300)


def test_fill_share_at_the_ends() -> None:
    assert fill_share(0, 0.5, 3) == fill_share(0.4, 0.5, 3) == 0.0
    assert fill_share(7, 1.0, 3) == 1.0
    assert fill_share(3, 1.0, 4) == 0.75
    assert fill_share(1e9, 0.5, 1000) == 1.0


def test_unpadding_weights_are_those_of_the_formula() -> None:
    assert unpadding_weights(4, 1.0) == (0.25, 0.0)
    assert unpadding_weights(5, 0.4) == pytest.approx((0.5, -1.5))
    weights = unpadding_weights(7, 0.3)
    assert 7 * weights.score + weights.middle == pytest.approx(1.0)  # a constant kernel stays itself


RECORDS = np.array([3, 9, 40, 41, 60, 62, 64, 64, 64, 20, 33, 5])  # on a grid of 64 steps, far from symmetric


def _estimates(noise: ScoreNoise, kernel: Any, at_middle: Any, z: Any, length: int, rate: float, runs: int) -> Any:
    """(runs, z): the unpadded mean embeddings of as many messages."""
    entropy = SeededEntropy(np.random.default_rng(11))
    weights = unpadding_weights(length, fill_share(RECORDS.size, rate, length))
    scores = noise.from_grid(RECORDS)
    messages = np.array([poisson_scores(scores, length, rate, noise, entropy) for _ in range(runs)])
    embedded = kernel(z[None, None, :], messages[:, :, None]).sum(axis=1)
    return weights.score * embedded + weights.middle * at_middle


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
@pytest.mark.parametrize(("length", "rate"), [(5, 0.5), (9, 0.3), (2, 0.9)])
@pytest.mark.parametrize("kernel", [GaussianKernel(0.3), EnergyKernel()], ids=str)
def test_unpadding_is_unbiased_for_the_convolved_embedding(kernel: Any, length: int, rate: float, kind: Kind) -> None:
    """Convolved by exact sums over the grid noise; 5 standard errors at 5 points z: false alarm 3e-6."""
    noise = ScoreNoise(kind, 0.2, step=1 / 64)
    k, probability = mass(kind, noise.grid_scale)
    z = np.linspace(0, 1, 5)

    def convolved(y: float) -> Any:
        return kernel(z[:, None], (y + k * noise.step)[None, :]) @ probability

    found = _estimates(noise, kernel, convolved(noise.middle), z, length, rate, 2000)
    target = np.mean([convolved(y) for y in noise.from_grid(RECORDS)], axis=0)
    error = found.std(axis=0) / math.sqrt(len(found))
    assert np.all(np.abs(found.mean(axis=0) - target) < 5 * error)


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_unpadding_is_unbiased_for_the_plain_embedding_with_a_deconvolved_kernel(kind: Kind) -> None:
    """κ′ * noise = κ, so the correction is the plain κ(z, middle). The grid's own part of the error is computed."""
    noise = ScoreNoise(kind, 0.2, step=1 / 64)
    kernel = GaussianKernel(0.5)
    sharpened: Any = kernel.deconvolve(noise.noise)
    k, probability = mass(kind, noise.grid_scale)
    z, scores = np.linspace(0, 1, 5), noise.from_grid(RECORDS)
    on_grid = np.array([sharpened(z[:, None], (y + k * noise.step)[None, :]) @ probability for y in scores])
    gap = np.abs(on_grid - kernel(z[None, :], scores[:, None])).max()
    assert gap < 2e-3  # Gaussian noise: next to nothing; Laplace: of the order of step²
    found = _estimates(noise, sharpened, kernel(z, noise.middle), z, 5, 0.5, 4000)
    error = found.std(axis=0) / math.sqrt(len(found))
    allowed = 5 * error + gap * (1 + 1 / fill_share(RECORDS.size, 0.5, 5))
    assert np.all(np.abs(found.mean(axis=0) - kernel(z[:, None], scores[None, :]).mean(axis=1)) < allowed)


def test_the_wrong_correction_would_be_noticed() -> None:
    """The middle with the plain kernel, while the scores carry noise, is off by far more than 5 standard errors."""
    noise, kernel, z = ScoreNoise("laplace", 0.5, step=1 / 64), LaplaceKernel(0.2), np.array([0.5])
    k, probability = mass("laplace", noise.grid_scale)
    found = _estimates(noise, kernel, kernel(z, noise.middle), z, 9, 0.3, 3000)
    convolved = [kernel(z[:, None], (y + k * noise.step)[None, :]) @ probability for y in noise.from_grid(RECORDS)]
    assert abs(found.mean() - np.mean(convolved)) > 5 * found.std() / math.sqrt(len(found))


def test_wrong_input_is_named() -> None:
    entropy = SystemEntropy()
    with pytest.raises(InputError, match=r"message length must be a whole number of at least 1; found 0. A cell that"):
        fixed_scores([0.1], 0, NOISE, entropy)
    with pytest.raises(InputError, match=r"sampling_rate must be in \(0, 1\]; found 1.5. It is a probability"):
        poisson_scores([0.1], 3, 1.5, NOISE, entropy)
    with pytest.raises(InputError, match=r"scores must be a list of numbers; found '2 dimensions'."):
        poisson_scores([[0.1]], 3, 0.5, NOISE, entropy)
    with pytest.raises(InputError, match=r"count must be 0 or above; found -3. Cells with a released count below the"):
        fill_share(-3, 0.5, 4)
    with pytest.raises(
        InputError, match=r"share must be in \(0, 1\]; found 0.0. A cell whose messages are all padding"
    ):
        unpadding_weights(3, 0.0)
