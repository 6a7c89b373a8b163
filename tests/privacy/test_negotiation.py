"""From released counts to terms, and from noisy messages to a witness without bias."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privfair.fairness.tracking import NoisyScores
from privfair.federated.algorithms.mmd_fedavg import pool, standard_error
from privfair.federated.release_plan import RELEASE_PLANS, Claim, PrivateUpdates, ReleasePlan, Sharing
from privfair.kernels import GaussianKernel
from privfair.mechanisms.entropy import SeededEntropy
from privfair.mechanisms.score_release import ScoreNoise, fixed_scores, poisson_scores
from tests.privacy.plans import GIVEN, RATES, planner, settle

COUNTS = st.lists(st.tuples(st.integers(-40, 600), st.integers(-40, 600)), min_size=1, max_size=6)
TIMES = 1500


def terms_of(cells: list[list[int]]) -> ReleasePlan:
    counts = np.array(cells)
    return ReleasePlan(counts.sum(axis=1), counts)


@pytest.mark.parametrize("correction", ["none", "deconvolve"])
@pytest.mark.parametrize("kind", ["padded", "dropped", "public"])
def test_the_pooled_embedding_is_unbiased(kind: str, correction: str) -> None:
    """Unequal clients, padded or overfull messages: the mean over many rounds is the embedding of all records.

    Of the followed kernel: κ convolved with the noise, or κ itself where κ was deconvolved before. Scores lie on the
    grid, so rounding plays no part. 6 standard errors at 3 points: a false alarm in 100 million.
    """
    rng = np.random.default_rng(7)
    own = [np.round(rng.beta(2, 5, size=40) * 256) / 256, np.round(rng.beta(5, 2, size=11) * 256) / 256]
    release_plan = terms_of([[40], [11]])
    noise = ScoreNoise("gaussian", 0.15)
    quotas = np.array([[30], [9]]) if kind == "padded" else np.array([[12], [3]])
    rates = None if kind == "public" else np.array([[0.5], [0.6]])
    sharing = Sharing(noise, quotas, rates, correction)  # type: ignore[arg-type]
    reported = NoisyScores(noise, correction, ())  # type: ignore[arg-type]
    kernel = GaussianKernel(0.4)
    on_scores, followed = reported.kernel_on_scores(kernel), reported.kernel_followed(kernel)
    entropy = SeededEntropy(rng)
    points = np.array([0.1, 0.5, 0.9])
    middle = followed(points, np.full(3, noise.middle))
    found = np.empty((TIMES, 3))
    for t in range(TIMES):
        replies = {}
        for k, scores in enumerate(own):
            quota = int(quotas[k, 0])
            if rates is None:
                replies[k] = (fixed_scores(scores, quota, noise, entropy),)
            else:
                replies[k] = (poisson_scores(scores, quota, float(rates[k, 0]), noise, entropy),)
        pooled = pool(replies, release_plan, sharing)
        found[t] = on_scores(points[:, None], pooled.scores[0][None, :]) @ pooled.weights[0] + pooled.pads[0] * middle
    everybody = np.concatenate(own)
    expected = followed(points[:, None], everybody[None, :]).mean(axis=1)
    error = found.std(axis=0, ddof=1) / TIMES**0.5
    assert np.all(np.abs(found.mean(axis=0) - expected) <= 6 * error)
    assert np.all(error < 0.05 * np.abs(expected))  # the test has the power to see a bias of a third
    # weights and the middle's weight make one: an embedding of a probability
    assert pooled.weights[0].sum() + pooled.pads[0] == pytest.approx(1.0)
    assert (pooled.pads[0] < 0) == (kind != "public")


def test_the_mean_score_has_the_standard_error_that_the_plan_tells() -> None:
    """Uniform scores, whose spread is the one assumed: an upper bound, and not a loose one."""
    rng = np.random.default_rng(3)
    release_plan, noise = terms_of([[60], [20]]), ScoreNoise("gaussian", 0.5)
    sharing = Sharing(noise, np.array([[20], [7]]), np.array([[0.33], [0.33]]))
    own = [rng.random(60), rng.random(20)]
    entropy = SeededEntropy(rng)
    found = []
    for _ in range(TIMES):
        quotas = sharing.quotas[:, 0]
        replies = {k: (poisson_scores(own[k], int(quotas[k]), 0.33, noise, entropy),) for k in range(2)}
        pooled = pool(replies, release_plan, sharing)
        found.append(pooled.scores[0] @ pooled.weights[0] + pooled.pads[0] * noise.middle)
    said = standard_error(release_plan, sharing, 0)
    # the spread of a sample's own spread is 1/√(2n); and the assumption on the scores is a rough one
    assert np.std(found) == pytest.approx(said, rel=0.15 + 6 / (2 * TIMES) ** 0.5)


@settings(max_examples=30, deadline=None)
@given(cells=COUNTS, rate=st.sampled_from([None, 0.01, 0.5, 1.0]))
def test_who_takes_part_follows_from_counts_by_rule(cells: list[tuple[int, int]], rate: float | None) -> None:
    """Every cell that is large enough at a client that is speaks, with one score or more; no other.

    Large enough: at least min_count, and at least three times the scale of the noise on counts.
    """
    totals = np.array([sum(own) for own in cells])
    privacy = {"epsilon": 3.0, "delta": 1e-6, "target_method": "rdp"} if rate is None else {**GIVEN, **RATES}
    if rate is not None:
        privacy |= {"prediction_rate": rate, "delta": 1e-6}
    plan = planner(privacy)
    assert plan.count_noise is not None
    least = max(10, np.ceil(3 * plan.count_noise.scale))
    if totals.max() < least:
        return
    release_plan = settle(plan, cells)
    np.testing.assert_array_equal(release_plan.records, np.where(totals >= least, totals, 0))
    speaks = (np.array(cells) >= least) & (totals >= least)[:, None]
    if release_plan.sharing is None:
        assert not speaks.any()
        return
    np.testing.assert_array_equal(release_plan.sharing.quotas >= 1, speaks)
    np.testing.assert_array_equal(release_plan.sharing.quotas == 0, ~speaks)
    assert release_plan.sharing.rates is not None
    assert np.all(release_plan.sharing.rates[speaks] > 0)
    assert np.all(release_plan.sharing.rates <= 1)
    if rate is not None:
        assert set(release_plan.sharing.rates[speaks].tolist()) <= {rate}


def test_no_count_is_clamped_by_itself() -> None:
    """A negative noisy count stays negative in the sum: clamping it would make sums of many clients too large."""
    release_plan = settle(planner({**GIVEN, **RATES}), [(-7, 90), (30, 60), (25, 70)])
    np.testing.assert_array_equal(release_plan.cells, [[-7, 90], [30, 60], [25, 70]])
    np.testing.assert_array_equal(release_plan.cell_totals, [48.0, 220.0])
    np.testing.assert_array_equal(release_plan.records, [83, 90, 95])
    small = settle(planner({**GIVEN, **RATES}), [(-7, 90), (4, 60), (5, 70)])
    np.testing.assert_array_equal(small.cell_totals, [10.0, 220.0])  # the sum, 2, is floored at min_count


def test_minibatches_have_the_planned_size_and_the_divisor_is_public() -> None:
    plan = planner({"epsilon": 3.0, "target_method": "rdp"})  # batch_size 50
    release_plan = settle(plan, [(120, 80), (60, 140)])
    assert release_plan.updates is not None
    assert release_plan.updates.sampling_rate == pytest.approx(50 * 2 / 400)
    assert release_plan.updates.steps == 4
    from privfair.federated.messages import LocalWork, PrivateWork

    work = release_plan.work(1, LocalWork(1, 50, 0.1))
    assert isinstance(work, PrivateWork)
    assert work.divisor == pytest.approx(0.25 * 200)


def test_terms_survive_a_checkpoint() -> None:
    for privacy in (
        {**GIVEN, **RATES},
        {**GIVEN, **RATES, "counts": "public"},
        {**GIVEN, **RATES, "predictions": "none"},
    ):
        release_plan = settle(planner(privacy))
        again = RELEASE_PLANS.from_text(RELEASE_PLANS.to_text(release_plan))
        assert RELEASE_PLANS.to_text(again) == RELEASE_PLANS.to_text(release_plan)
        assert isinstance(again.claim, Claim)
        assert isinstance(again.updates, PrivateUpdates)
