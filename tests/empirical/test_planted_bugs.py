"""An audit that cannot fail is worth nothing: bugs planted in the real components are each found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accountant.accountant import Accountant
from privfair.audit.audit import Effort, audit
from privfair.audit.findings import Findings
from privfair.channels.counts import CountsChannel
from privfair.clients.client import Client
from privfair.clients.opacus_engine import NoisyMean
from privfair.mechanisms.count_release import CountNoise
from privfair.mechanisms.entropy import SeededEntropy
from privfair.mechanisms.score_release import ScoreNoise
from privfair.privacy.planner import PrivateCounts
from privfair.runs import assembly as simulation
from tests.empirical.plans import PRIVATE, PUBLIC, generator_noise, plan

QUICK = Effort(300, 2.0)


def caught(found: Findings, channel: str) -> None:
    """The audit names the channel, and more was seen than it claims."""
    assert found.outcome == "violated"
    assert not found.fine
    assert f"VIOLATED: more can be seen than the claim allows, by {channel} (" in found.verdict
    assert "violated" in {f.verdict for f in found.findings if f.channel == channel}


SHUFFLED = {**PRIVATE, "prediction_noise": 1.0}


@pytest.mark.parametrize(
    "privacy", [pytest.param(PUBLIC, id="public counts"), pytest.param(SHUFFLED, id="private", marks=pytest.mark.slow)]
)
def test_half_the_noise_on_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, privacy: dict[str, Any]) -> None:
    generator_noise(monkeypatch, 1)
    subject, honest = plan(tmp_path, privacy), ScoreNoise.release

    def halved(self: ScoreNoise, index: np.ndarray, entropy: SeededEntropy) -> np.ndarray:
        return honest(ScoreNoise(self.kind, self.scale / 2, self.low, self.high, self.step), index, entropy)

    # with private counts the record is kept only half the time against another one: it takes more trials
    effort = QUICK if privacy is PUBLIC else Effort(10_000, 4.0)
    assert audit(subject, effort, ["predictions"]).fine
    monkeypatch.setattr(ScoreNoise, "release", halved)
    caught(audit(subject, effort, ["predictions"]), "predictions")


def test_half_the_noise_on_updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator_noise(monkeypatch, 2)
    subject, honest = plan(tmp_path, {**PRIVATE, "noise_multiplier": 0.7}), NoisyMean._draws
    assert audit(subject, Effort(160, 2.0), ["updates"]).fine
    monkeypatch.setattr(NoisyMean, "_draws", lambda self, *given: (0.5 * draw for draw in honest(self, *given)))
    caught(audit(subject, Effort(160, 2.0), ["updates"]), "updates")


def test_no_clipping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator_noise(monkeypatch, 3)
    subject, honest = plan(tmp_path, PRIVATE), NoisyMean.clip_and_accumulate

    def unclipped(self: NoisyMean) -> None:
        bound, self.max_grad_norm = self.max_grad_norm, 1e3
        honest(self)
        self.max_grad_norm = bound

    monkeypatch.setattr(NoisyMean, "clip_and_accumulate", unclipped)
    caught(audit(subject, Effort(80, 2.0), ["updates"]), "updates")
    subject = plan(tmp_path, {**PRIVATE, "noise_multiplier": 3.0})
    caught(audit(subject, Effort(80, 2.0), ["canaries"]), "canaries")


def test_an_accountant_that_starts_anew_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The books of four rounds, of which only the last is told."""
    generator_noise(monkeypatch, 4)
    subject, honest = plan(tmp_path, {**PUBLIC, "prediction_noise": 0.6}, rounds=4), Accountant.compose

    def forgetful(self: Accountant, event: object, count: int = 1, **labels: Any) -> Accountant:
        if any(release.round != labels["round"] for release in self._releases):
            self._releases.clear()
        return honest(self, event, count, **labels)

    assert audit(subject, QUICK, ["predictions"]).fine
    monkeypatch.setattr(Accountant, "compose", forgetful)
    caught(audit(subject, QUICK, ["predictions"]), "predictions")


@pytest.mark.parametrize("fresh", [True, False], ids=["in every round of a run", "in every run"])
def test_the_same_seed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: bool) -> None:
    """Nobody need know the seed: the same noise on two messages is taken off by subtracting them."""
    subject, drawn = plan(tmp_path, {**PUBLIC, "prediction_noise": 2.0}, rounds=2), iter(range(10**6))

    def reused(config: object, client: int) -> Any:
        return lambda channel, number: SeededEntropy(np.random.default_rng(next(drawn) // 2 if fresh else 7))

    generator_noise(monkeypatch, 5)
    assert audit(subject, Effort(80, 2.0), ["predictions"]).fine
    monkeypatch.setattr(simulation, "entropy_of", reused)
    caught(audit(subject, Effort(80, 2.0), ["predictions"]), "predictions")


def test_a_quota_that_tells_how_large_the_cell_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Message lengths planned from the true counts: noise on the counts themselves no longer helps."""
    generator_noise(monkeypatch, 6)
    subject, true = plan(tmp_path, {**PRIVATE, "noise_multiplier": 4.0, "prediction_noise": 4.0}), list[np.ndarray]()
    counts, quotas = CountsChannel.respond, PrivateCounts._quotas

    def noted(self: CountsChannel, request: Any, client: Client, entropy: Any) -> Any:
        true.append(client.cell_counts)
        return counts(self, request, client, entropy)

    monkeypatch.setattr(CountsChannel, "respond", noted)
    monkeypatch.setattr(PrivateCounts, "_quotas", lambda self, _, rate: quotas(self, true[-1][None, :], rate))
    caught(audit(subject, Effort(80, 2.0), ["run"]), "run")


def test_counts_without_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator_noise(monkeypatch, 7)
    subject = plan(tmp_path, PRIVATE)
    assert audit(subject, QUICK, ["counts"]).fine
    monkeypatch.setattr(CountNoise, "release", lambda self, counts, entropy: np.asarray(counts, dtype=np.int64))
    caught(audit(subject, QUICK, ["counts"]), "counts")
