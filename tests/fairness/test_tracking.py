"""The per-example penalty has the gradient of MMD², however records are split among clients and batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from privfair.datasets.records import Records, Schema, SensitiveAttribute
from privfair.fairness.notions import EQUALIZED_ODDS, RISK_PARITY, STATISTICAL_PARITY, Cells, ConditioningSet, Notion
from privfair.fairness.tracking import DriftingPenalty, NoisyScores, SharedScores, TrackedPenalty, equal_weights
from privfair.kernels import EnergyKernel, GaussianKernel, mmd2
from privfair.mechanisms.score_release import ScoreNoise
from privfair.util import FloatArray

RNG = np.random.default_rng(0)


def some_records(n: int, groups: tuple[int, ...], seed: int = 0) -> tuple[Records, Schema]:
    rng = np.random.default_rng(seed)
    columns = np.stack([rng.integers(g, size=n) for g in groups], axis=1)
    attributes = tuple(
        SensitiveAttribute(f"attribute{i}", tuple(f"value{v}" for v in range(g))) for i, g in enumerate(groups)
    )
    schema = Schema(("x",), "binary", "y", (0.0, 1.0), attributes)
    labels = rng.integers(2, size=n)
    return Records(rng.normal(size=(n, 1)), labels, columns, np.zeros((n, 0), dtype=bool)), schema


def share_everything(scores: FloatArray, records: Records, cells: Cells, strength: float, kernel: str) -> SharedScores:
    member = cells.membership(records)
    shared = tuple(scores[member[:, c]] for c in range(len(cells)))
    return SharedScores(
        kernel,
        strength,
        shared,
        equal_weights(shared),
        member.sum(axis=0).astype(float),
        float(len(records)),
        (0.0, 1.0),
    )


def exact_slopes(scores: FloatArray, records: Records, cells: Cells, kernel: object) -> FloatArray:
    """∂/∂S_i of Σ MMD² over all comparisons and pairs, by difference quotients of the plain definition."""
    member = cells.membership(records)

    def total(values: FloatArray) -> float:
        result = 0.0
        for comparison in cells.comparisons:
            parts = [values[member[:, c]] for c in comparison.cells if member[:, c].any()]
            for i in range(len(parts)):
                for j in range(i):
                    result += mmd2(parts[i], parts[j], kernel)  # type: ignore[arg-type]
        return result

    h, slopes = 1e-6, np.zeros_like(scores)
    for i in range(scores.size):
        up, down = scores.copy(), scores.copy()
        up[i] += h
        down[i] -= h
        slopes[i] = (total(up) - total(down)) / (2 * h)
    return slopes


@pytest.mark.parametrize("notion", [STATISTICAL_PARITY, EQUALIZED_ODDS, RISK_PARITY], ids=lambda n: n.name)
@pytest.mark.parametrize("groups", [(2,), (3,), (2, 3)], ids=str)
def test_mean_of_the_penalty_has_the_gradient_of_mmd2(notion: Notion, groups: tuple[int, ...]) -> None:
    """With all scores shared, (1/n)·∂penalty_i/∂S_i = λ·∂MMD²/∂S_i, for any number of groups and attributes."""
    records, schema = some_records(40, groups)
    scores = np.random.default_rng(1).uniform(size=40)
    cells = Cells.of(notion, schema)
    penalty = TrackedPenalty(share_everything(scores, records, cells, 0.7, "gaussian:0.3"), cells)
    slope = penalty.derivative(scores, penalty.coefficients(cells.membership(records)))
    np.testing.assert_allclose(slope / 40, 0.7 * exact_slopes(scores, records, cells, GaussianKernel(0.3)), atol=1e-6)


def test_clients_means_weighted_by_their_records_are_the_pooled_mean() -> None:
    """The α of the paper: a client's mean penalty, weighted by its share of records, adds up to the global one."""
    records, schema = some_records(60, (2,))
    scores = np.random.default_rng(2).uniform(size=60)
    cells = Cells.of(STATISTICAL_PARITY, schema)
    penalty = TrackedPenalty(share_everything(scores, records, cells, 1.0, "energy"), cells)
    values = penalty.derivative(scores, penalty.coefficients(cells.membership(records)), 0)
    parts = [np.arange(0, 7), np.arange(7, 45), np.arange(45, 60)]
    by_client = sum(len(p) / 60 * values[p].mean() for p in parts)
    assert by_client == pytest.approx(values.mean())
    # and equals f = 2(E[C | A=0] − E[C | A=1]), which at the broadcast is 2·MMD²
    assert values.mean() == pytest.approx(
        2 * mmd2(scores[records.groups[:, 0] == 0], scores[records.groups[:, 0] == 1], EnergyKernel())
    )


def test_a_cell_that_nobody_has_adds_nothing() -> None:
    records, schema = some_records(30, (3,))
    records = Records(records.features, records.labels, np.minimum(records.groups, 1), records.conditions)
    scores = np.random.default_rng(3).uniform(size=30)
    cells = Cells.of(STATISTICAL_PARITY, schema)
    penalty = TrackedPenalty(share_everything(scores, records, cells, 1.0, "energy"), cells)
    slope = penalty.derivative(scores, penalty.coefficients(cells.membership(records)))
    np.testing.assert_allclose(slope / 30, exact_slopes(scores, records, cells, EnergyKernel()), atol=1e-5)


def test_one_group_only_has_no_penalty() -> None:
    records, schema = some_records(10, (2,))
    records = Records(records.features, records.labels, np.zeros_like(records.groups), records.conditions)
    cells = Cells.of(STATISTICAL_PARITY, schema)
    scores = np.linspace(0, 1, 10)
    penalty = TrackedPenalty(share_everything(scores, records, cells, 1.0, "energy"), cells)
    for order in (0, 1):
        assert not penalty.derivative(scores, penalty.coefficients(cells.membership(records)), order).any()


def test_user_given_conditioning_set() -> None:
    records, schema = some_records(50, (2,))
    notion = Notion("mine", "prediction", (ConditioningSet("positive x", lambda r: r.features[:, 0] > 0),))
    cells = Cells.of(notion, schema)
    member = cells.membership(records)
    assert not member[records.features[:, 0] <= 0].any()
    assert member.sum() == (records.features[:, 0] > 0).sum()


def test_drift_correction_follows_the_only_client_exactly() -> None:
    """A client that has everything: "own" and "shared" agree, and C follows its present predictions."""
    records, schema = some_records(50, (2,))
    before, now = np.random.default_rng(4).uniform(size=(2, 50))
    cells = Cells.of(STATISTICAL_PARITY, schema)
    member = cells.membership(records)
    tracked = TrackedPenalty(share_everything(before, records, cells, 1.0, "energy"), cells)
    fresh = TrackedPenalty(share_everything(now, records, cells, 1.0, "energy"), cells)
    coefficients = tracked.coefficients(member)
    for shared in (True, False):
        drifting = DriftingPenalty(tracked, member, before, shared_drift=shared)
        at_start = drifting.derivative(before, coefficients)
        np.testing.assert_allclose(at_start, tracked.derivative(before, coefficients), atol=1e-12)
        drifting.refresh(now)
        np.testing.assert_allclose(
            drifting.derivative(now, coefficients), fresh.derivative(now, coefficients), atol=1e-12
        )


def test_own_drift_meets_the_kernel_that_is_followed() -> None:
    """Own scores have no noise; without its smoothing they would not meet what noisy scores are in the mean."""
    records, schema = some_records(30, (2,))
    before, now = np.random.default_rng(6).uniform(size=(2, 30))
    cells = Cells.of(STATISTICAL_PARITY, schema)
    member = cells.membership(records)
    base = share_everything(before, records, cells, 1.0, "gaussian:0.3")
    for correction in ("none", "deconvolve"):
        noise = ScoreNoise("laplace", 0.4)
        noisy = NoisyScores(noise, correction, (-0.2, -0.5))  # type: ignore[arg-type]
        tracked = TrackedPenalty(replace(base, noisy=noisy), cells)
        coefficients = tracked.coefficients(member)
        drifting = DriftingPenalty(tracked, member, before, shared_drift=True)
        np.testing.assert_allclose(
            drifting.derivative(before, coefficients), tracked.derivative(before, coefficients), atol=1e-9
        )
        drifting.refresh(now)
        drift = drifting.derivative(now, coefficients, 0) - tracked.derivative(now, coefficients, 0)
        kernel = GaussianKernel(0.3)
        followed = kernel if correction == "deconvolve" else kernel.convolve(noise.noise)
        expected = np.zeros(30)
        for group, sign in ((0, 1.0), (1, -1.0)):
            rows = member[:, group]
            matrices = [followed(now[:, None], scores[None, rows]).mean(axis=1) for scores in (now, before)]
            expected += sign * (matrices[0] - matrices[1])
        np.testing.assert_allclose(drift, coefficients[0] * expected, atol=1e-6)


def test_own_drift_counts_the_clients_share() -> None:
    """A client with a tenth of each group moves C by a tenth of what "shared" does."""
    records, schema = some_records(40, (2,))
    before, now = np.random.default_rng(5).uniform(size=(2, 40))
    cells = Cells.of(STATISTICAL_PARITY, schema)
    member = cells.membership(records)
    base = share_everything(before, records, cells, 1.0, "energy")
    tenfold = SharedScores(
        base.kernel, 1.0, base.scores, base.weights, base.counts * 10, base.records * 10, base.domain
    )
    tracked = TrackedPenalty(tenfold, cells)
    coefficients, z = tracked.coefficients(member), np.linspace(0, 1, 40)
    frozen = tracked.derivative(z, coefficients, 0)
    moved = {}
    for shared in (True, False):
        drifting = DriftingPenalty(tracked, member, before, shared_drift=shared)
        drifting.refresh(now)
        moved[shared] = drifting.derivative(z, coefficients, 0) - frozen
    np.testing.assert_allclose(moved[False], moved[True] / 10, atol=1e-12)
