"""Tracking by features: the penalty is that of all scores shared, and sums are opened as they were made."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from accountant.errors import InputError
from privfair.clients.client import Embedder
from privfair.fairness.notions import EQUALIZED_ODDS, STATISTICAL_PARITY, Cells, Notion
from privfair.fairness.tracking import EmbeddingPlan, SealedFeatures, SharedFeatures, TrackedPenalty, opened_features
from privfair.kernels import GaussianKernel
from privfair.mechanisms.entropy import SeededEntropy
from privfair.secure_aggregation import MODULI, ClientAggregator, ServerAggregator, WholeNumbers, aggregators, new_keys
from tests.fairness.test_tracking import exact_slopes, share_everything, some_records

PLAN = EmbeddingPlan("gaussian:0.3", 0.0, 1.0, 12)


def sides(scheme: str, clients: int) -> tuple[ClientAggregator, ServerAggregator]:
    if scheme == "float":
        return aggregators("plain", None, fixed_point=None)
    keys = new_keys(scheme) if scheme == "bfv" else None
    return aggregators(scheme, keys, fixed_point=WholeNumbers(clients, MODULI[scheme]))


def seeded(seed: int = 0) -> SeededEntropy:
    return SeededEntropy(np.random.default_rng(seed))


def shared(
    scores: np.ndarray, member: np.ndarray, parts: list[np.ndarray], plan: EmbeddingPlan = PLAN, scheme: str = "float"
) -> SharedFeatures:
    """What clients with these rows know after a round without noise."""
    client, server = sides(scheme, len(parts))
    embedder = Embedder(plan, client)
    every = np.ones(member.shape[1], dtype=np.int64)
    messages = [
        embedder.message(scores[rows], member[rows], every, None, seeded(), client=k) for k, rows in enumerate(parts)
    ]
    counts = member.sum(axis=0).astype(float)
    return embedder.open(SealedFeatures(plan.kernel, 0.7, server.add(messages), counts, counts, float(len(scores))))


@pytest.mark.parametrize("notion", [STATISTICAL_PARITY, EQUALIZED_ODDS], ids=lambda n: n.name)
@pytest.mark.parametrize("groups", [(2,), (3,), (2, 3)], ids=str)
def test_mean_of_the_penalty_has_the_gradient_of_mmd2(notion: Notion, groups: tuple[int, ...]) -> None:
    """However the records are divided among clients: with 12 features a Gaussian kernel is whole to 1e-6."""
    records, schema = some_records(40, groups)
    scores = np.random.default_rng(1).uniform(size=40)
    cells = Cells.of(notion, schema)
    member = cells.membership(records)
    parts = np.array_split(np.random.default_rng(2).permutation(40), 3)
    penalty = TrackedPenalty(shared(scores, member, parts), cells)
    slope = penalty.derivative(scores, penalty.coefficients(member))
    np.testing.assert_allclose(slope / 40, 0.7 * exact_slopes(scores, records, cells, GaussianKernel(0.3)), atol=1e-5)


@pytest.mark.parametrize("kernel", ["energy", "laplace:0.3"])
def test_what_is_left_out_is_as_small_as_stated(kernel: str) -> None:
    records, schema = some_records(400, (2,))
    scores = np.random.default_rng(1).beta(2, 3, size=400)
    cells = Cells.of(STATISTICAL_PARITY, schema)
    member = cells.membership(records)
    plan = EmbeddingPlan(kernel, 0.0, 1.0, None)
    mine = TrackedPenalty(shared(scores, member, [np.arange(400)], plan), cells)
    exact = TrackedPenalty(share_everything(scores, records, cells, 0.7, kernel), cells)
    z = np.linspace(0, 1, 2001)
    error = mine.embeddings[0].evaluate(z, 1) - exact.embeddings[0].evaluate(z, 1)
    assert np.sqrt(np.mean(error**2)) <= 2 * plan.unit.features.slope_error
    assert np.sqrt(np.mean(error**2)) < 0.05  # 400 smooth scores: far less than the worst case


def test_encrypted_and_plain_sums_are_the_same_and_near_the_exact_ones() -> None:
    records, schema = some_records(60, (2,))
    scores = np.random.default_rng(3).uniform(size=60)
    member = Cells.of(STATISTICAL_PARITY, schema).membership(records)
    parts = [np.arange(20), np.arange(20, 21), np.arange(21, 60)]
    exact, plain, encrypted = (shared(scores, member, parts, scheme=s) for s in ("float", "plain", "bfv"))
    np.testing.assert_array_equal(plain.means, encrypted.means)
    unit = PLAN.unit
    error = (plain.means - exact.means) * unit.weights / unit.radius  # of ψ
    assert np.abs(error).max() <= 0.5 / PLAN.steps + 1e-12
    assert np.abs(error).max() > 0


def test_noise_is_on_every_coordinate_and_divided_by_the_records() -> None:
    client, server = sides("plain", 2)
    embedder, noise = Embedder(PLAN, client), PLAN.noise(5.0)
    scores, member = np.full(100, 0.3), np.ones((100, 1), dtype=bool)
    errors = []
    entropy = seeded(7)
    for _ in range(40):
        asked = np.ones(1, dtype=np.int64)
        messages = [embedder.message(scores, member, asked, noise, entropy, client=k) for k in range(2)]
        count = np.array([200.0])
        sealed = SealedFeatures(PLAN.kernel, 1.0, server.add(messages), count, count, 200.0)
        total = client.open(sealed.total)
        errors.append(total / PLAN.steps / 200 - PLAN.unit.values([0.3])[0])
    spread = np.array(errors).std()
    # σ·√(2 clients)/200 records; 480 draws: five standard errors of a standard deviation
    expected = 5.0 * np.sqrt(2) / 200
    assert spread == pytest.approx(expected, rel=5 / np.sqrt(2 * 480))


def test_a_share_of_noise_is_whole_even_where_the_records_find_no_room() -> None:
    """Rooms are planned from noisy counts; others count on this client's share, however many records it has."""
    code = WholeNumbers(3, 2**21)
    plan = replace(PLAN, features=2, room=code.most // PLAN.steps, cohort=3)
    client, _ = aggregators("plain", None, fixed_point=code)
    embedder, noise = Embedder(plan, client), plan.noise(5.0)
    room = plan.room_beside(noise)
    assert room is not None
    psi = plan.unit.values(np.linspace(0, 1, 101))
    score = np.linspace(0, 1, 101)[np.abs(psi).max(axis=1).argmax()]
    many = int(2 * room / np.abs(psi).max())
    sent = {}
    for count in (0, many):
        member = np.ones((count, 1), dtype=bool)
        message = embedder.message(np.full(count, score), member, np.ones(1, dtype=np.int64), noise, seeded(3))
        sent[count] = client.open(message)
    records = sent[many] - sent[0]  # the same draws of noise
    each = np.rint(plan.unit.values([score])[0] * plan.steps)
    np.testing.assert_array_equal(records, np.clip(many * each, -room * plan.steps, room * plan.steps))
    assert np.abs(records).max() == room * plan.steps


def test_cells_that_are_not_asked_for_are_zero_and_not_heard() -> None:
    client, server = sides("plain", 1)
    embedder = Embedder(PLAN, client)
    scores, member = np.array([0.2, 0.9]), np.array([[True, False], [False, True]])
    message = embedder.message(scores, member, np.array([1, 0]), PLAN.noise(3.0), seeded())
    opened = client.open(server.add([message])).reshape(2, -1)
    assert opened[0].any()
    assert not opened[1].any()
    shares, counts = np.array([30.0, 0.0]), np.array([30.0, 30.0])
    found = embedder.open(SealedFeatures(PLAN.kernel, 1.0, server.add([message]), shares, counts, 60.0))
    assert found.received(0)
    assert not found.received(1)


def test_a_round_in_which_nobody_answers_has_no_penalty() -> None:
    _, schema = some_records(10, (2,))
    cells = Cells.of(STATISTICAL_PARITY, schema)
    client, _ = sides("plain", 1)
    sealed = SealedFeatures(PLAN.kernel, 1.0, b"", np.zeros(2), np.array([5.0, 5.0]), 10.0)
    penalty = TrackedPenalty(Embedder(PLAN, client).open(sealed), cells)
    assert penalty.factors == []
    assert penalty.derivative(np.array([0.3]), penalty.coefficients(np.ones((1, 2), dtype=bool))).tolist() == [0.0]


def test_a_mean_that_noise_carried_out_of_the_ball_comes_back_to_it() -> None:
    sealed = SealedFeatures(PLAN.kernel, 1.0, b"", np.array([10.0, 10.0]), np.array([10.0, 10.0]), 20.0)
    total = np.zeros((2, 12))
    total[0, :2] = 30.0, 40.0
    total[1, 0] = 5.0
    unit = PLAN.unit
    found = opened_features(PLAN, sealed, total.reshape(-1), 1.0)
    back = (found.means - unit.centre) * unit.weights / unit.radius
    np.testing.assert_allclose(back[0, :2], [0.6, 0.8])
    np.testing.assert_allclose(back[1, 0], 0.5)


def test_a_sum_of_another_length_is_refused() -> None:
    sealed = SealedFeatures(PLAN.kernel, 1.0, b"", np.ones(2), np.ones(2), 2.0)
    with pytest.raises(InputError, match="sum of features must have 24 values; found 23"):
        opened_features(PLAN, sealed, np.zeros(23), 1.0)


def test_the_sum_is_opened_once_for_all_clients_of_a_process() -> None:
    client, server = sides("plain", 1)
    embedder = Embedder(PLAN, client)
    every = np.ones(1, dtype=np.int64)
    message = embedder.message(np.array([0.5]), np.ones((1, 1), dtype=bool), every, None, seeded())
    sealed = SealedFeatures(PLAN.kernel, 1.0, server.add([message]), np.ones(1), np.ones(1), 1.0)
    assert embedder.open(sealed) is embedder.open(sealed)
    assert embedder.open(replace(sealed)) is not embedder.open(sealed)
