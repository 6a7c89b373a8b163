"""Attacks on the honest pipeline: near the claim where they can be, never beyond it more often than stated."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from accountant import Budget, Ledger
from accountant.empirical import TradeOff, distinguish
from accountant.errors import InputError, Refused
from accountant.ledger.machine_state import state_folder
from privfair.audit.attack import prepare, read
from privfair.audit.audit import Effort, audit
from privfair.audit.scores import OneScore, PredictionsAttack, worst_case
from privfair.audit.updates import CanariesAttack, UpdatesAttack, one_run_result
from privfair.audit.whole_run import HolderAttack, WholeRunAttack
from privfair.config import Config
from privfair.mechanisms.score_release import ScoreNoise
from tests.empirical.plans import PRIVATE, PUBLIC, generator_noise, plan, trials
from tests.end_to_end.federations import toy

DELTA = 1e-5


def test_the_prediction_channel_is_measured_to_three_quarters_of_its_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Public counts, a cell of one record: its score at one end or the other, with noise of half the range."""
    generator_noise(monkeypatch, 1)
    found = audit(plan(tmp_path, PUBLIC), Effort(1200, 2.0, confidence=0.95), ["predictions"])
    (one,) = found.findings
    assert found.fine
    assert one.verdict in ("consistent", "inconclusive")  # the attack meets the claim: either half of the time
    assert 0.75 * one.upper < one.lower <= one.upper
    assert one.upper == pytest.approx(9.997, abs=0.01)
    assert abs(one.accuracy - 0.8413) < 5 * 0.37 / np.sqrt(one.guesses)
    assert one.allowed_accuracy == pytest.approx(0.8413, abs=1e-3)


@pytest.mark.slow
def test_an_honest_pipeline_is_accused_no_more_often_than_stated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty audits of the tightest channel; the tolerance fails a true rate of 5% with probability 1e-5."""
    generator_noise(monkeypatch, 2)
    attack, audits, each = PredictionsAttack(plan(tmp_path, PUBLIC)), 40, 90
    claim = attack.claim()
    absent = trials(attack, False, audits * each)
    present = trials(attack, True, audits * each)
    attack.close()
    accused = 0
    for part in range(audits):
        rows = slice(part * each, (part + 1) * each)
        accused += distinguish(absent[rows], present[rows], claim.event, DELTA, 0.05).lower > claim.epsilon
    assert accused <= binom.isf(1e-5, audits, 0.05)


@pytest.mark.slow
def test_the_updates_of_a_replaced_record_are_measured_near_their_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator_noise(monkeypatch, 3)
    found = audit(plan(tmp_path, {**PUBLIC, "noise_multiplier": 1.0}), Effort(700, 2.0, confidence=0.95), ["updates"])
    (one,) = found.findings
    assert found.fine
    assert 0.75 * one.upper < one.lower <= one.upper  # 2 standard deviations apart


@pytest.mark.slow
def test_sampled_steps_and_deeper_models_are_attacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator_noise(monkeypatch, 4)
    privacy = {**PRIVATE, "noise_multiplier": 0.7, "sampling_rate": 0.5, "local_steps": 2}
    subject = plan(tmp_path, privacy, 2, model={"name": "mlp", "hidden": [4]})
    attack = UpdatesAttack(subject)
    claim = attack.claim()
    rows = [trials(attack, there, 250) for there in (False, True)]
    attack.close()
    found = distinguish(rows[0], rows[1], claim.event, DELTA, 0.05)
    assert 0.25 * claim.epsilon < found.if_as_stated <= claim.epsilon


def test_canaries_of_one_run_tell_something_and_not_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator_noise(monkeypatch, 5)
    attack = CanariesAttack(plan(tmp_path, {**PRIVATE, "noise_multiplier": 0.5}))
    claim, runs = attack.claim(), [attack.run() for _ in range(6)]
    attack.close()
    for view in ("white", "black"):
        found = one_run_result(runs, view, TradeOff.of(claim.event), DELTA, 0.05)
        assert found.p_value >= 0.05
        assert found.canaries == 4 * 128
        assert 1.0 < found.epsilon < claim.epsilon  # two standard deviations apart: 84% right without abstaining
    share = np.mean([run.right(run.white, 128) / 128 for run in runs])
    assert abs(share - 0.8413) < 5 * 0.37 / np.sqrt(6 * 128) + 0.02  # 0.02: exactly half are said to be in


@pytest.mark.slow
def test_a_whole_run_adds_up_what_its_channels_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator_noise(monkeypatch, 6)
    attack = WholeRunAttack(plan(tmp_path, {**PRIVATE, "noise_multiplier": 0.5}))
    claim = attack.claim()
    rows = [trials(attack, there, 90) for there in (False, True)]
    attack.close()
    found = distinguish(rows[0][:, :5], rows[1][:, :5], claim.event, DELTA, 0.05)
    assert 0.1 * claim.epsilon < found.lower <= claim.epsilon
    gains = rows[1].mean(axis=0) - rows[0].mean(axis=0)
    errors = np.sqrt((rows[0].var(axis=0) + rows[1].var(axis=0)) / 90)
    assert gains[3] > 4 * errors[3]  # updates
    assert gains[0] > 4 * errors[0]  # everything
    assert gains[5] > 4 * errors[5]  # the final model alone: black-box


def test_the_law_of_a_message_is_that_of_real_messages() -> None:
    """Against counting all subsets; and the worst case is not the lonely record, whose pad is near it."""
    law = OneScore(others=2, rate=0.3)
    present = np.zeros(3)
    for mask in product((0, 1), repeat=3):  # the last is the attacked record
        p = np.prod([0.3 if m else 0.7 for m in mask])
        taken = sum(mask)
        if not taken:
            present[0] += p
        else:
            present[1] += p * sum(mask[:2]) / taken
            present[2] += p * mask[2] / taken
    assert np.allclose(law.present, present)
    assert np.allclose(law.absent, [0.49, 0.51, 0.0])
    assert np.allclose(OneScore(3, None).present, [0.0, 0.75, 0.25])
    assert worst_case(1.0, ScoreNoise("gaussian", 0.5)).others == 1


def test_the_plan_is_carried_over_exactly(tmp_path: Path) -> None:
    scores = {"tracker": "samples"}
    subject = plan(tmp_path, {"epsilon": 3.0, "delta": 1e-5}, rounds=3, fairness=scores)  # rates from released counts
    release_plan, fixed = subject.release_plan, subject.config.privacy
    assert release_plan.sharing is not None and release_plan.updates is not None and release_plan.counting is not None  # noqa: PT018
    assert fixed.epsilon is None
    assert fixed.count_noise == release_plan.counting.scale
    assert fixed.prediction_noise == release_plan.sharing.noise.scale
    assert fixed.noise_multiplier == release_plan.updates.noise_multiplier
    assert (fixed.sampling_rate, fixed.local_steps) == (release_plan.updates.sampling_rate, release_plan.updates.steps)
    assert subject.config.run.reproducible_noise is False


def test_what_cannot_be_audited_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="privacy must be on: without it nothing is claimed; found 'off'"):
        prepare(Config.build({}), tmp_path)
    with pytest.raises(InputError, match="must have a channel with noise"):
        prepare(Config.build({"privacy": {"counts": "public", "noise_multiplier": 1.0, "updates": "none",
                                          "predictions": "none"}}), tmp_path, federation=toy())  # fmt: skip
    url = f"sqlite:///{tmp_path}/budgets.sqlite"
    with Ledger(url) as ledger:
        ledger.set_budget("toy", Budget(3.0, 1e-6))
    config = Config.build({"privacy": PRIVATE, "run": {"ledger": url}})
    with pytest.raises(Refused, match=r"Dataset 'toy' has a budget .* audit the same \[privacy\]"):
        prepare(config, tmp_path, federation=toy())
    with Ledger(url) as ledger:
        assert not ledger.runs("toy")
    with pytest.raises(InputError, match=r"trials must be at least 80; found 5\. Fewer show nothing"):
        Effort(trials=5)
    with pytest.raises(InputError, match="--set is for a configuration file"):
        read(tmp_path, ("run.seed=1",))


def test_unknown_channels_are_refused_and_silent_ones_skipped(tmp_path: Path) -> None:
    subject = plan(tmp_path, PUBLIC)
    with pytest.raises(
        InputError,
        match="counts, predictions, embeddings, updates, penalty, clients, evaluation, canaries, run, holder; found",
    ):
        audit(subject, channels=["embedings"])
    silent = replace(subject, release_plan=replace(subject.release_plan, sharing=None))
    found = audit(silent, channels=["counts", "predictions"])
    assert dict(found.skipped).keys() == {"counts", "predictions"}
    assert found.sentence == "Nothing was attacked."
    assert found.fine


def test_ledgers_of_trials_are_neither_announced_nor_remembered(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """There are hundreds, and all are thrown away."""
    attack = HolderAttack(plan(tmp_path, PRIVATE))
    attack.claim()
    trials(attack, True, 2)
    assert "ledger" not in capfd.readouterr().err
    assert not list(state_folder().iterdir())
