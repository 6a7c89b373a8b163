"""The attack on sums of features: the worst neighbours, near the claim and not beyond it; noise whole or in shares."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from accountant.empirical import distinguish
from privfair.audit.attack import first_client, only_trained, twin
from privfair.audit.audit import Effort, audit
from privfair.audit.features import EmbeddingsAttack, embedder_of, loudest_models
from privfair.audit.whole_run import WholeRunAttack
from privfair.clients.client import all_scores
from tests.empirical.plans import PRIVATE, PUBLIC, SHARED, generator_noise, plan, plan_of_sums, trials

DELTA = 1e-5


@pytest.mark.parametrize("privacy", [PUBLIC, PRIVATE], ids=["replaced", "left out"])
@pytest.mark.parametrize(("kernel", "model"), [("energy", "logistic"), ("gaussian:0.3", "logistic"), ("energy", "mlp")])
def test_the_neighbours_are_as_far_apart_as_any_scores_can_make_them(
    tmp_path: Path, privacy: dict[str, object], kernel: str, model: str
) -> None:
    subject = plan_of_sums(tmp_path, privacy, kernel=kernel, model={"name": model})
    far = np.zeros((1, 8))
    far[0, 0] = 50.0
    simulation = subject.simulation([only_trained(subject.records(far))], "far")
    present = first_client(simulation)
    absent = twin(simulation, subject.records(-far) if subject.replaces else subject.records(far).take([]))
    unit = embedder_of(present).plan.unit
    vectors = unit.values(np.linspace(0, 1, 801))
    others = vectors if subject.replaces else np.zeros((1, unit.count))
    widest = max(float(np.linalg.norm(vectors - other, axis=1).max()) for other in others)
    moved = []
    for values in loudest_models(present, absent):
        sums = []
        for client in (present, absent):
            client.model.load(values)
            sums.append(unit.values(all_scores(client.model, client.data)).sum(axis=0))
        moved.append(sums[0] - sums[1])
    assert np.linalg.norm(moved[0]) >= 0.99 * widest
    assert np.linalg.norm(moved[1]) >= 0.98 * widest
    assert np.linalg.norm(moved[0] - moved[1]) > 0.9  # so that the same noise on both would show
    assert widest <= (unit.spread if subject.replaces else 1.0)
    simulation.close()


@pytest.mark.parametrize(("privacy", "noise"), [(PUBLIC, 1.0), (PRIVATE, 0.5)], ids=["public counts", "private counts"])
def test_the_channel_is_measured_to_two_thirds_of_its_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, privacy: dict[str, object], noise: float
) -> None:
    generator_noise(monkeypatch, 31)
    subject, effort = plan_of_sums(tmp_path, {**privacy, "prediction_noise": noise}), Effort(700, 2.0, confidence=0.95)
    found = audit(subject, effort, ["embeddings"])
    (one,) = found.findings
    assert found.fine
    assert 2 / 3 * one.upper < one.lower <= one.upper
    assert abs(one.accuracy - one.allowed_accuracy) < 5 * 0.37 / np.sqrt(one.guesses) + 0.01


def test_who_opens_a_sum_meets_all_of_the_noise_and_who_opens_a_message_one_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scales by 200 draws of two rounds; five standard errors."""
    generator_noise(monkeypatch, 32)
    subject = plan_of_sums(tmp_path, {**SHARED, "smallest_cohort": 4}, rounds=2, clients=5)
    attack = EmbeddingsAttack(subject)
    claim, rows = attack.claim(), trials(attack, False, 200)
    attack.close()
    embedding = subject.release_plan.embedding
    assert embedding is not None
    assert (subject.cohort, embedding.noise.shares) == (4, 3)
    assert list(attack.views) == ["client", "server and client"]
    for column, scale in (
        (0, embedding.noise.grid_scale),
        (len(attack.views["client"]), embedding.noise.grid_scale / np.sqrt(3)),
    ):
        expected = np.sqrt(2) * scale
        assert abs(rows[:, column].std() - expected) < 5 * expected / np.sqrt(2 * 200)
        assert abs(rows[:, column].mean()) < 5 * expected / np.sqrt(200)
    pooled = claim.against("server and client")
    assert claim.against("client") is claim
    assert subject.colluding is not None
    assert claim.epsilon < pooled.epsilon < subject.colluding


@pytest.mark.slow
def test_noise_in_shares_is_measured_by_both_adversaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator_noise(monkeypatch, 33)
    subject = plan_of_sums(tmp_path, {**SHARED, "prediction_noise": 0.7}, clients=3)
    found = audit(subject, Effort(700, 2.0, confidence=0.95), ["embeddings"])
    assert found.fine
    assert [f.adversary for f in found.findings] == ["client", "server and client"]
    assert all(0.6 * f.upper < f.lower <= f.upper for f in found.findings)
    assert found.lower == found.findings[0].lower  # the run's own ε is for nobody who pools
    assert found.collusion == (found.findings[1].lower, subject.colluding)
    assert found.membership is found.findings[0]
    assert found.to_json()["collusion"]["upper"] == subject.colluding


@pytest.mark.slow
@pytest.mark.parametrize("privacy", [PUBLIC, PRIVATE, SHARED], ids=["replaced", "left out", "shares"])
def test_every_attack_works_or_says_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, privacy: dict[str, object]
) -> None:
    generator_noise(monkeypatch, 34)
    found = audit(plan_of_sums(tmp_path, privacy, rounds=2, clients=3), Effort(80, 1.0))
    assert found.fine
    skipped = dict(found.skipped)
    assert skipped.pop("predictions") == "not shared: sums of their features are (embeddings)"
    if privacy is SHARED:
        assert "noise comes in shares of several clients" in skipped.pop("run")
        assert "noise comes in shares of several clients" in skipped.pop("holder")
    assert skipped.pop("clients") == "single records are protected (updates)"
    assert skipped.pop("evaluation") == "not in the plan (privacy.evaluation)"
    if privacy is PUBLIC:
        assert skipped.keys() == {"counts", "canaries"}
        return
    assert not skipped
    assert {f.channel for f in found.findings} >= {"counts", "embeddings", "updates", "penalty", "canaries"}


@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True])
def test_a_whole_run_adds_up_counts_sums_and_updates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    generator_noise(monkeypatch, 35)
    federation = {"rounds": 2 if late else 1, "lagged_scores": late}
    attack = WholeRunAttack(plan_of_sums(tmp_path, {**PRIVATE, "noise_multiplier": 0.5}, federation=federation))
    claim = attack.claim()
    rows = [trials(attack, there, 90) for there in (False, True)]
    attack.close()
    found = distinguish(rows[0][:, :5], rows[1][:, :5], claim.event, DELTA, 0.05)
    assert 0.2 * claim.epsilon < found.lower <= claim.epsilon
    gains = rows[1].mean(axis=0) - rows[0].mean(axis=0)
    errors = np.sqrt((rows[0].var(axis=0) + rows[1].var(axis=0)) / 90)
    assert all(gains[i] > 4 * errors[i] for i in (0, 2, 3, 5))  # everything, sums, updates, the final model


def test_the_plan_with_its_shares_is_carried_over(tmp_path: Path) -> None:
    """ε calibrated with encryption, attacked without: the same noise, and both ε of the statement."""
    subject = plan_of_sums(tmp_path, {"epsilon": 3.0, "distributed_noise": True}, rounds=3, clients=3)
    embedding = subject.release_plan.embedding
    assert embedding is not None
    assert embedding.noise.shares == 2
    assert subject.config.privacy.prediction_noise == embedding.noise.multiplier
    assert subject.config.scheme == "plain"
    assert subject.release_plan.claim is not None
    assert subject.colluding is not None
    assert subject.colluding > subject.release_plan.claim.pld


def test_a_tracker_of_scores_has_no_sums(tmp_path: Path) -> None:
    assert EmbeddingsAttack.why_not(plan(tmp_path, PUBLIC)) == "not shared: scores are (predictions)"
    exact = plan_of_sums(tmp_path, {**PRIVATE, "predictions": "none", "prediction_noise": None})
    assert "without noise" in str(EmbeddingsAttack.why_not(exact))
    assert audit(exact, Effort(80, 1.0), ["embeddings"]).findings == ()
