"""Bugs planted in sums of features and their noise: each is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privfair.audit.audit import Effort, audit
from privfair.channels.features import FeaturesChannel
from privfair.clients import client as client_module
from privfair.clients.client import Client
from privfair.federated.messages import EmbeddingsRequest
from privfair.kernels.features import UnitFeatures
from privfair.mechanisms.entropy import SeededEntropy
from privfair.mechanisms.vector_release import VectorNoise
from privfair.runs import assembly as simulation
from tests.empirical.plans import PRIVATE, PUBLIC, SHARED, generator_noise, plan_of_sums
from tests.empirical.test_planted_bugs import caught

QUICK = Effort(500, 2.0)
CHANNEL = ["embeddings"]


@pytest.mark.parametrize("privacy", [PUBLIC, PRIVATE], ids=["replaced", "left out"])
def test_half_the_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, privacy: dict[str, Any]) -> None:
    generator_noise(monkeypatch, 21)
    subject, honest = plan_of_sums(tmp_path, {**privacy, "prediction_noise": 1.0}), VectorNoise.release

    def halved(self: VectorNoise, total: np.ndarray, entropy: SeededEntropy) -> np.ndarray:
        return honest(replace(self, multiplier=self.multiplier / 2), total, entropy)

    assert audit(subject, QUICK, CHANNEL).fine
    monkeypatch.setattr(VectorNoise, "release", halved)
    caught(audit(subject, QUICK, CHANNEL), "embeddings")


def test_vectors_that_are_not_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Features beyond the unit ball harm nobody while each record's vector is cut; without that they do."""
    generator_noise(monkeypatch, 22)
    subject, honest = plan_of_sums(tmp_path, PRIVATE), UnitFeatures.values
    monkeypatch.setattr(UnitFeatures, "values", lambda self, scores, **how: 3.0 * honest(self, scores, **how))
    assert audit(subject, QUICK, CHANNEL).fine
    monkeypatch.setattr(client_module, "grid_sum", lambda v, steps: np.rint(v * steps).astype(np.int64).sum(axis=0))
    caught(audit(subject, QUICK, CHANNEL), "embeddings")


def test_the_same_noise_in_two_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject, drawn = plan_of_sums(tmp_path, {**PRIVATE, "prediction_noise": 4.0}, rounds=2), iter(range(10**6))

    def reused(config: object, client: int) -> Any:
        return lambda channel, number: SeededEntropy(np.random.default_rng(next(drawn) // 2))

    generator_noise(monkeypatch, 23)
    assert audit(subject, Effort(80, 2.0), CHANNEL).fine
    monkeypatch.setattr(simulation, "entropy_of", reused)
    caught(audit(subject, Effort(80, 2.0), CHANNEL), "embeddings")


def test_a_client_that_forgets_its_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three clients: who opens the sum knows its own share, and of the two that should be left one is missing."""
    generator_noise(monkeypatch, 24)
    subject, honest = plan_of_sums(tmp_path, SHARED, clients=3), FeaturesChannel.respond

    def forgetful(self: FeaturesChannel, request: EmbeddingsRequest, client: Client, entropy: Any) -> Any:
        return honest(self, replace(request, release=None) if client.index == 1 else request, client, entropy)

    assert audit(subject, Effort(300, 2.0), CHANNEL).fine
    monkeypatch.setattr(FeaturesChannel, "respond", forgetful)
    found = audit(subject, Effort(300, 2.0), CHANNEL)
    caught(found, "embeddings")
    assert [f.adversary for f in found.findings if f.verdict == "violated"] == [
        "client"
    ]  # the attacked one has its share


@pytest.mark.slow
def test_noise_and_not_its_variance_divided_among_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator_noise(monkeypatch, 25)
    subject = plan_of_sums(tmp_path, {**SHARED, "prediction_noise": 1.0}, clients=5)
    assert audit(subject, QUICK, CHANNEL).fine
    monkeypatch.setattr(VectorNoise, "share_scale", property(lambda self: self.grid_scale / self.shares))
    found = audit(subject, QUICK, CHANNEL)
    caught(found, "embeddings")
    assert [f.adversary for f in found.findings if f.verdict == "violated"] == ["client", "server and client"]


def test_one_share_at_the_price_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ε against server and client together is the run's own: noise is as it should be, the statement is not."""
    generator_noise(monkeypatch, 26)
    given = {"prediction_noise": 2.0, "noise_multiplier": 20.0, "retries": 0, "distributed_noise": True}
    privacy = {**PUBLIC, **given}
    assert audit(plan_of_sums(tmp_path, privacy, clients=5), QUICK, CHANNEL).fine
    monkeypatch.setattr(VectorNoise, "alone", property(lambda self: self))
    found = audit(plan_of_sums(tmp_path, privacy, clients=5), QUICK, CHANNEL)
    assert "by embeddings (server and client). An audit" in found.verdict
    assert found.collusion is not None
    measured, claimed = found.collusion
    assert measured > claimed == found.planned
