"""Bugs that one client, one cell, one channel or one path alone does not show: each is planted, and each is found."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from privfair.audit.audit import Effort, audit
from privfair.audit.findings import Findings
from privfair.channels import updates as update_channel
from privfair.clients.client import TrainingData, build_losses
from privfair.clients.opacus_engine import NoisyMean
from privfair.clients.training import Trained
from privfair.deployment.holder import Holder, HolderRun
from privfair.engines.batched import engine as stacked_draws
from privfair.federated.messages import Task, TrainRequest
from privfair.mechanisms.count_release import CountNoise
from privfair.mechanisms.entropy import SeededEntropy
from privfair.mechanisms.score_release import ScoreNoise
from privfair.mechanisms.vector_release import VectorNoise
from privfair.models import FlatModel
from privfair.runs import assembly as simulation
from tests.empirical.plans import PRIVATE, PUBLIC, Quiet, generator_noise, plan, plan_of_sums
from tests.empirical.test_planted_bugs import caught

FEW = Effort(80, 1.0)
CLIENT_LEVEL = {"counts": "public", "updates": "client_level", "noise_multiplier": 2.0, "prediction_noise": 9.0}


def named(found: Findings, channel: str) -> set[str | None]:
    """The clients that a violation names."""
    return {f.worst for f in found.findings if f.channel == channel and f.verdict == "violated"}


@pytest.mark.parametrize("engine", ["local", "stacked"])
def test_noise_divided_by_the_root_of_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    generator_noise(monkeypatch, 41)
    subject = plan(tmp_path, PRIVATE, run={"engine": engine})
    assert audit(subject, FEW, ["updates"]).fine
    opacus, stacked = NoisyMean._draws, stacked_draws.private_draws

    def less(records: int, size: int, work: Any, entropy: Any) -> Any:
        order, noise = stacked(records, size, work, entropy)
        return order, noise / math.sqrt(work.divisor)

    monkeypatch.setattr(
        NoisyMean, "_draws", lambda self, work, e: (d / math.sqrt(work.divisor) for d in opacus(self, work, e))
    )
    monkeypatch.setattr(stacked_draws, "private_draws", less)
    caught(audit(subject, FEW, ["updates"]), "updates")


@pytest.mark.parametrize("tracker", ["scores", pytest.param("embedding", marks=pytest.mark.slow)])
def test_the_gradient_of_the_penalty_added_after_clipping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracker: str
) -> None:
    generator_noise(monkeypatch, 42)
    subject = plan(tmp_path, PRIVATE) if tracker == "scores" else plan_of_sums(tmp_path, PRIVATE)
    assert audit(subject, FEW, ["penalty"]).fine
    honest = update_channel.train_privately

    def unclipped(
        request: TrainRequest, start: np.ndarray, data: TrainingData, model: FlatModel, *rest: Any
    ) -> Trained:
        model.load(start)
        everyone, total = torch.arange(len(data.y)), torch.zeros(model.flat.numel(), dtype=torch.float64)
        for objective, sign in ((request.objective, 1.0), (Task(), -1.0)):
            loss = build_losses(objective, data, model)(everyone, model.outputs(data.x)).sum()
            parts = torch.autograd.grad(loss, list(model.trainable))
            total += sign * torch.cat([part.reshape(-1) for part in parts]).double()
        found = honest(_with_task(request), start, data, model, *rest)
        step = request.work.learning_rate / request.work.divisor  # type: ignore[union-attr]
        moved = (found.parameters - step * total.numpy()).astype(found.parameters.dtype)
        return Trained(moved, found.steps, found.snapshot)

    monkeypatch.setattr(update_channel, "train_privately", unclipped)
    caught(audit(subject, FEW, ["penalty"]), "penalty")
    assert audit(subject, FEW, ["updates"]).fine  # without a penalty there is nothing to see


def _with_task(request: TrainRequest) -> TrainRequest:
    return replace(request, objective=Task())


@pytest.mark.parametrize(
    "channel",
    ["counts", "updates", *(pytest.param(c, marks=pytest.mark.slow) for c in ("predictions", "evaluation"))],
)
def test_every_tenth_client_without_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, channel: str) -> None:
    generator_noise(monkeypatch, 43)
    privacy = {**PUBLIC, "evaluation": "laplace", "evaluation_noise": 2.0, "noise_multiplier": 4.0}
    privacy = privacy if channel == "predictions" else {**PRIVATE, **privacy, "counts": "laplace"}
    subject = plan(tmp_path, privacy, clients=10)
    assert audit(subject, FEW, [channel]).fine
    rng = np.random.default_rng(44)
    monkeypatch.setattr(
        simulation, "entropy_of", lambda config, k: lambda _, number: (Quiet if k % 10 == 9 else SeededEntropy)(rng)
    )
    found = audit(subject, FEW, [channel])
    caught(found, channel)
    assert named(found, channel) <= {"client9", None}


def _repeated(honest: Any) -> Any:
    """The release of every cell with the noise of the first, by drawing it again."""
    states: dict[int, tuple[Any, Any]] = {}

    def release(self: Any, values: Any, entropy: SeededEntropy) -> Any:
        generator = entropy.rng.bit_generator
        _, generator.state = states.setdefault(id(entropy), (entropy, generator.state))
        return honest(self, values, entropy)

    return release


@pytest.mark.parametrize("tracker", ["scores", "embedding"])
def test_one_noise_vector_for_all_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracker: str) -> None:
    generator_noise(monkeypatch, 45)
    privacy = {**PUBLIC, "prediction_noise": 4.0}
    subject = plan(tmp_path, privacy) if tracker == "scores" else plan_of_sums(tmp_path, privacy)
    channel = "predictions" if tracker == "scores" else "embeddings"
    assert audit(subject, FEW, [channel]).fine
    kind = ScoreNoise if tracker == "scores" else VectorNoise
    monkeypatch.setattr(kind, "release", _repeated(kind.release))
    caught(audit(subject, FEW, [channel]), channel)


def test_the_same_noise_at_two_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither message says too much by itself; their difference has no noise left."""
    subject, drawn = plan(tmp_path, {**PUBLIC, "prediction_noise": 4.0}, clients=2), [0]

    def shared(config: object, client: int) -> Any:
        def entropy(channel: str, number: int) -> SeededEntropy:
            drawn[0] += client == 0  # the first client is asked first
            return SeededEntropy(np.random.default_rng(drawn[0]))

        return entropy

    generator_noise(monkeypatch, 46)
    assert audit(subject, FEW, ["predictions"]).fine
    monkeypatch.setattr(simulation, "entropy_of", shared)
    caught(audit(subject, FEW, ["predictions"]), "predictions")


@pytest.mark.parametrize("counts", ["laplace", "public"])
def test_a_final_evaluation_without_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counts: str) -> None:
    generator_noise(monkeypatch, 47)
    privacy = {**(PRIVATE if counts == "laplace" else PUBLIC), "evaluation": "gaussian", "evaluation_noise": 4.0}
    subject, honest = plan(tmp_path, privacy), CountNoise.release
    assert audit(subject, FEW, ["evaluation"]).fine

    def naked(self: CountNoise, values: np.ndarray, entropy: Any) -> np.ndarray:
        return values if values.ndim > 1 else honest(self, values, entropy)  # tables have three dimensions

    monkeypatch.setattr(CountNoise, "release", naked)
    caught(audit(subject, FEW, ["evaluation"]), "evaluation")


@pytest.mark.parametrize(
    ("engine", "scheme"),
    [("local", "plain"), ("stacked", "plain"), pytest.param("local", "bfv", marks=pytest.mark.slow)],
)
def test_whole_clients_with_a_third_of_the_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, scheme: str
) -> None:
    generator_noise(monkeypatch, 48)
    subject = plan(tmp_path, CLIENT_LEVEL, clients=2, run={"engine": engine}, aggregation={"scheme": scheme})
    assert audit(subject, FEW, ["clients"]).fine
    honest = VectorNoise.release

    def less(self: VectorNoise, total: np.ndarray, entropy: Any) -> np.ndarray:
        return total + (honest(self, total, entropy) - total) // 3

    monkeypatch.setattr(VectorNoise, "release", less)
    caught(audit(subject, FEW, ["clients"]), "clients")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["plain", "bfv"])
def test_a_data_holder_without_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    """Only on Flower: a simulation of the same plan is as it should be."""
    generator_noise(monkeypatch, 49)
    rng = np.random.default_rng(50)
    privacy = {**PRIVATE, "count_noise": 2.0, "noise_multiplier": 2.0, "prediction_noise": 2.0}
    subject = plan(tmp_path, privacy, aggregation={"scheme": scheme})
    assert audit(subject, FEW, ["holder"]).fine
    opened = Holder._run

    @contextmanager
    def quiet(self: Holder, run: str) -> Iterator[HolderRun]:
        with opened(self, run) as found:
            found.client.entropy = lambda channel, number: Quiet(rng)
            yield found

    monkeypatch.setattr(Holder, "_run", quiet)
    caught(audit(subject, FEW, ["holder"]), "holder")
    assert audit(subject, FEW, ["run"]).fine


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["bfv", "ckks"])
def test_updates_are_attacked_under_the_configured_encryption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    generator_noise(monkeypatch, 51)
    subject = plan(tmp_path, PRIVATE, aggregation={"scheme": scheme})
    assert subject.config.scheme == scheme
    assert audit(subject, FEW, ["updates", "penalty"]).fine
    honest = NoisyMean._draws
    monkeypatch.setattr(NoisyMean, "_draws", lambda self, *given: (draw / 4 for draw in honest(self, *given)))
    caught(audit(subject, Effort(300, 2.0), ["updates"]), "updates")  # with 80 trials it was missed once in some tries


def test_honest_updates_are_as_visible_as_allowed_under_a_strong_penalty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack is the worst case: half of its guesses' advantage would hide a bug of that size."""
    generator_noise(monkeypatch, 52)
    (one,) = audit(plan(tmp_path, PRIVATE), Effort(300, 1.0), ["penalty"]).findings
    error = 5 * 0.5 / math.sqrt(one.guesses)
    assert one.accuracy > one.allowed_accuracy - error
    assert one.allowed_accuracy == pytest.approx(0.6915, abs=2e-3)
