"""Attacks on masked sums, as the server with other holders: near both claims and not beyond; planted bugs are found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accountant.events import InShares
from privfair.audit.attack import Attack, Subject, in_the_open, remainder
from privfair.audit.audit import KINDS, Effort, audit
from privfair.audit.updates import CanariesAttack
from privfair.channels.base import respond
from privfair.clients import training
from privfair.mechanisms.count_release import CountNoise
from privfair.mechanisms.entropy import SeededEntropy
from privfair.mechanisms.vector_release import VectorNoise
from privfair.runs import assembly as simulation
from privfair.secure_aggregation.base import BFV_MODULUS
from privfair.secure_aggregation.masks import Cohort
from tests.empirical.plans import CLIENTS_MASKED, FIVE, MASKED, Quiet, generator_noise, plan_with_masks, trials
from tests.empirical.test_blind_spots import named
from tests.empirical.test_planted_bugs import caught

BOTH = ["colluders", "all others"]
FEW = Effort(300, 2.0)
CHANNELS = ["counts", "embeddings", "updates", pytest.param("penalty", marks=pytest.mark.slow), "evaluation", "clients"]


def five(folder: Path, channel: str, **sections: Any) -> Subject:
    """Five holders of whom two collude; two honest shares carry the claim."""
    privacy = CLIENTS_MASKED if channel == "clients" else MASKED
    return plan_with_masks(folder, privacy, clients=5, aggregation=FIVE, **sections)


@pytest.mark.parametrize("channel", CHANNELS)
def test_both_claims_are_measured_to_a_good_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, channel: str) -> None:
    """Accuracy: five standard errors; and 0.01, because the test's threshold is estimated."""
    generator_noise(monkeypatch, 61)
    found = audit(five(tmp_path, channel), Effort(600, 2.0, confidence=0.95), [channel])
    assert found.fine
    assert [f.adversary for f in found.findings] == BOTH
    assert {f.clients for f in found.findings} == {5}
    for one in found.findings:
        assert 0.5 * one.upper < one.lower <= one.upper
        assert abs(one.accuracy - one.allowed_accuracy) < 5 * 0.43 / np.sqrt(one.guesses) + 0.01
    colluders, everybody = found.findings
    assert colluders.upper < everybody.upper
    assert found.lower == colluders.lower  # the run's own ε is not for all others together
    assert found.collusion == (everybody.lower, everybody.pooled)
    assert everybody.pooled is not None
    assert everybody.upper < everybody.pooled


@pytest.mark.parametrize("channel", ["counts", "embeddings", "updates"])
def test_colluders_meet_the_noise_of_all_honest_shares_and_all_others_that_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, channel: str
) -> None:
    """Scales by 300 draws; five standard errors."""
    generator_noise(monkeypatch, 62)
    attack, draws = _attack(five(tmp_path, channel), channel), 300
    claim, rows = attack.claim(), trials(attack, False, draws)
    attack.close()
    each = len(attack.views[BOTH[0]])
    column = 1 if channel == "updates" else 0  # along the record, but for the sampling's likelihood
    ratio = rows[:, column].std() / rows[:, each + column].std()
    assert abs(ratio / np.sqrt(2) - 1) < 5 / np.sqrt(draws)
    assert claim.against(BOTH[0]) is claim
    assert claim.epsilon < claim.against(BOTH[1]).epsilon
    (row,) = claim.event.events  # type: ignore[attr-defined]
    assert isinstance(row.event, InShares)
    assert (row.event.holders, row.event.colluders, row.event.smallest) == (5, 2, 4)


def _attack(subject: Subject, channel: str) -> Attack:
    made = KINDS[channel](subject)
    assert not isinstance(made, CanariesAttack)
    return made


def test_a_sum_in_the_open_is_the_one_that_wraps(tmp_path: Path) -> None:
    attack = _attack(five(tmp_path, "counts"), "counts")
    worlds, request = attack._worlds, attack._request  # type: ignore[attr-defined]
    exact = replace(request, noise=replace(request.noise, scale=1e-9, grid=64))
    reply: Any = respond(worlds.present, exact)
    attack.close()
    numbers = in_the_open(reply.contribution)
    assert numbers.tolist() == [
        64.0 * count for count in worlds.present.data.cells.tell(worlds.present.data.membership)
    ]
    top = BFV_MODULUS // 2
    assert remainder(np.array([top, top + 1.0, -top - 1.0, 3.0])).tolist() == [top, -top, top, 3.0]


def test_sampled_gradients_of_several_rounds_and_canaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator_noise(monkeypatch, 63)
    subject = plan_with_masks(tmp_path, {**MASKED, "sampling_rate": 0.5, "noise_multiplier": 0.5}, rounds=2)
    found = audit(subject, Effort(240, 2.0, confidence=0.95), ["updates", "canaries"])
    assert found.fine
    assert [f.adversary for f in found.findings] == [*BOTH, "white-box", "black-box"]
    for one in found.findings:
        assert one.accuracy > 0.5 + 0.5 * (one.allowed_accuracy - 0.5)
        assert one.lower <= one.upper


@pytest.mark.parametrize("channel", ["embeddings", "updates"])
def test_features_that_lag_are_attacked_in_a_vector_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, channel: str
) -> None:
    generator_noise(monkeypatch, 65)
    subject = five(tmp_path, channel, federation={"rounds": 2, "lagged_scores": True})
    assert subject.config.lagged
    found = audit(subject, Effort(80, 1.0), [channel])
    assert found.fine
    assert [f.adversary for f in found.findings] == BOTH
    assert all(0 < f.lower <= f.upper for f in found.findings)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "stacked"])
@pytest.mark.parametrize("scheme", ["bfv", "masked"])
def test_every_attack_works_or_says_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, scheme: str
) -> None:
    generator_noise(monkeypatch, 64)
    sums = {**FIVE, "scheme": scheme}
    subject = plan_with_masks(tmp_path, {"epsilon": 3.0}, 2, 5, aggregation=sums, run={"engine": engine})
    found = audit(subject, Effort(80, 1.0))
    assert found.fine
    skipped = dict(found.skipped)
    assert "noise comes in shares of several clients" in skipped.pop("run")
    assert "noise comes in shares of several clients" in skipped.pop("holder")
    assert skipped.keys() == {"predictions", "clients"}
    attacked = {"counts", "embeddings", "updates", "penalty", "canaries", "evaluation"}
    assert {f.channel for f in found.findings} == attacked


def test_holders_that_keep_all_of_their_noise_are_attacked_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under masks, too: the claim is for each message."""
    generator_noise(monkeypatch, 65)
    own = plan_with_masks(tmp_path, {**MASKED, "distributed_noise": False}, aggregation={"scheme": "masked"})
    assert own.masks is None
    found = audit(own, Effort(80, 1.0), ["counts", "embeddings", "updates"])
    assert found.fine
    assert [f.adversary for f in found.findings] == ["server", "white-box", "white-box"]
    several = plan_with_masks(tmp_path, {**MASKED, "local_steps": 2})
    found = audit(several, Effort(80, 1.0), ["counts", "updates"])
    assert found.fine
    assert [f.adversary for f in found.findings] == [*BOTH, "white-box"]


# ---- Planted bugs


@pytest.mark.parametrize("channel", CHANNELS)
def test_noise_sized_for_all_holders_and_not_for_the_honest_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, channel: str
) -> None:
    generator_noise(monkeypatch, 66)
    with monkeypatch.context() as planning:
        planning.setattr(Cohort, "honest", property(lambda self: self.holders))
        subject = five(tmp_path, channel)
    found = audit(subject, Effort(500, 2.0), [channel])
    caught(found, channel)
    assert [f.adversary for f in found.findings if f.verdict == "violated"] == BOTH[:1]  # one share is priced as it is


@pytest.mark.parametrize("channel", ["counts", "embeddings", "updates", "clients"])
def test_a_holder_that_forgets_its_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, channel: str) -> None:
    generator_noise(monkeypatch, 67)
    subject = five(tmp_path, channel)
    assert audit(subject, FEW, [channel]).fine
    rng = np.random.default_rng(68)
    monkeypatch.setattr(
        simulation, "entropy_of", lambda config, k: lambda _, number: (Quiet if k == 1 else SeededEntropy)(rng)
    )
    found = audit(subject, FEW, [channel])
    caught(found, channel)
    assert "all others" in {f.adversary for f in found.findings if f.verdict == "violated"}
    assert named(found, channel) <= {subject.clients[1], None}


def test_a_share_that_is_missing_shows_in_sums_with_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three holders two are honest: every other sum has half of its noise, and those of the forgetful one have."""
    generator_noise(monkeypatch, 69)
    subject, effort = plan_with_masks(tmp_path, {**MASKED, "count_noise": 0.5}), Effort(1800, 2.0)
    assert audit(subject, effort, ["counts"]).fine
    rng = np.random.default_rng(70)
    monkeypatch.setattr(
        simulation, "entropy_of", lambda config, k: lambda _, number: (Quiet if k == 1 else SeededEntropy)(rng)
    )
    found = audit(subject, effort, ["counts"])
    caught(found, "counts")
    assert [f.adversary for f in found.findings if f.verdict == "violated"] == BOTH


@pytest.mark.parametrize("channel", ["counts", "evaluation"])
def test_counts_without_shares_of_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, channel: str) -> None:
    generator_noise(monkeypatch, 71)
    subject = five(tmp_path, channel)
    monkeypatch.setattr(CountNoise, "release", lambda self, counts, entropy: np.asarray(counts) * self.steps)
    found = audit(subject, FEW, [channel])
    caught(found, channel)
    assert [f.adversary for f in found.findings if f.verdict == "violated"] == BOTH


@pytest.mark.parametrize("times", [2.0, 1e3], ids=["clipped to twice the bound", "not clipped"])
@pytest.mark.parametrize("channel", ["updates", pytest.param("penalty", marks=pytest.mark.slow)])
def test_gradients_that_are_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, channel: str, times: float
) -> None:
    generator_noise(monkeypatch, 72)
    subject, honest = five(tmp_path, channel), training.whole_sum

    def longer(gradients: np.ndarray, bound: float, steps: int) -> np.ndarray:
        return np.asarray(honest(gradients, times * bound, round(times * steps)))

    assert audit(subject, FEW, [channel]).fine
    monkeypatch.setattr(training, "whole_sum", longer)
    caught(audit(subject, FEW, [channel]), channel)


@pytest.mark.parametrize("channel", ["embeddings", "updates"])
def test_one_share_at_the_price_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, channel: str) -> None:
    """The sum keeps its claim; what holds beyond the colluders does not."""
    generator_noise(monkeypatch, 73)
    subject = five(tmp_path, channel)
    monkeypatch.setattr(VectorNoise, "alone", property(lambda self: replace(self, shares=1)))
    found = audit(subject, Effort(800, 2.0), [channel])
    caught(found, channel)
    assert [f.adversary for f in found.findings if f.verdict == "violated"] == BOTH[1:]
