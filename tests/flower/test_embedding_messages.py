"""Sums of features over the real messages: what a holder refuses, who is absent, what is never opened."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from privfair.federated.messages import EmbeddingsRequest, Tracked, TrainRequest
from privfair.secure_aggregation import ClientAggregator, TooNoisy
from tests.flower.federations import PRIVATE, deployment
from tests.flower.test_faults import ENCRYPTED, QUANTISED, at, damaged, late
from tests.flower.test_holder import changing

EMBEDDING = {"fairness": {"tracker": "embedding"}}
NOISE = {k: v for k, v in PRIVATE.items() if k != "prediction_rate"} | {"prediction_noise": 5.0}
PLAN = {**EMBEDDING, "privacy": NOISE, **QUANTISED}
AS_AGREED = "The embeddings are not asked for as agreed: "


def with_shared(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def changed(request: Any) -> Any:
        assert isinstance(request.objective, Tracked)
        return replace(request, objective=replace(request.objective, shared=change(request.objective.shared)))

    return changed


FORGERIES: dict[str, tuple[type[Any], Callable[[Any], Any], str]] = {
    "no noise": (EmbeddingsRequest, lambda r: replace(r, release=None), AS_AGREED),
    "less noise": (
        EmbeddingsRequest, lambda r: replace(r, release=replace(r.release, multiplier=1.0)), AS_AGREED,
    ),
    "shares": (EmbeddingsRequest, lambda r: replace(r, release=replace(r.release, shares=4)), AS_AGREED),
    "fewer cells": (EmbeddingsRequest, lambda r: replace(r, cells=np.array([1, 0])), AS_AGREED),
    "another kernel": (
        TrainRequest, with_shared(lambda s: replace(s, kernel="laplace:0.1")), "The penalty is not the agreed one.",
    ),
    "more records": (
        TrainRequest, with_shared(lambda s: replace(s, shares=s.shares + 1)), "not those of the agreed groups",
    ),
    "other counts": (
        TrainRequest, with_shared(lambda s: replace(s, counts=s.counts / 2)), "The counts are not those of the terms.",
    ),
    "no sum": (
        TrainRequest, with_shared(lambda s: replace(s, total=b"garbage")), "The shared features are not the agreed",
    ),
}  # fmt: skip
QUICK = ("less noise", "no sum")


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in FORGERIES])
def test_requests_that_are_not_the_plan_are_refused(tmp_path: Path, name: str) -> None:
    kind, change, reason = FORGERIES[name]
    found = deployment(tmp_path, PLAN, meddle=changing(change, kind))
    absences = found.serve().absent
    assert {a.client for a in absences} == {0}
    assert len(absences) == 3
    assert all(reason in a.reason for a in absences)
    channel = "updates" if kind is TrainRequest else "embeddings"
    assert all(spend.channel != channel for spend in found.spends(0))
    assert sum(spend.channel == channel for spend in found.spends(1)) >= 3


@pytest.mark.parametrize("fault", [late, pytest.param(damaged, marks=pytest.mark.slow)])
def test_who_does_not_answer_is_not_in_the_sum_and_encrypted_is_plain(tmp_path: Path, fault: Any) -> None:
    models = []
    for name, sections in (("plain", QUANTISED), ("bfv", ENCRYPTED)):
        (tmp_path / name).mkdir()
        found = deployment(tmp_path / name, sections, EMBEDDING, meddle=at(101, "embeddings", 1, fault))
        (absence,) = found.serve().absent
        assert (absence.round, absence.client, absence.asked) == (1, 1, "embeddings")
        models.append([load_file(found.holder(k) / "model.safetensors") for k in range(3)])
    for holder in range(3):
        for name, values in models[0][0].items():
            np.testing.assert_array_equal(models[0][holder][name], values)
            np.testing.assert_array_equal(models[1][holder][name], values)


def test_a_holder_leaves_after_features_that_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = ClientAggregator.open
    features: list[int] = []

    def noisy(self: ClientAggregator, total: bytes, name: str = "sum", **options: Any) -> Any:
        if name == "sum of features":
            features.append(1)
            if len(features) == 2:  # the second holder's first
                raise TooNoisy(name, "must have noise below its numbers", "more")
        return inner(self, total, name, **options)

    monkeypatch.setattr(ClientAggregator, "open", noisy)
    checkpoint = deployment(tmp_path, ENCRYPTED, EMBEDDING).serve()
    reasons = {(a.client, a.reason) for a in checkpoint.absent}
    assert reasons == {(1, "This data holder has left the run: a sum could not be opened.")}


@pytest.mark.usefixtures("begun_earlier")
def test_shared_noise_states_both_epsilons_at_every_holder_and_a_round_of_too_few_has_no_penalty(
    tmp_path: Path,
) -> None:
    privacy = {"privacy": {**NOISE, "distributed_noise": True}}
    found = deployment(tmp_path, ENCRYPTED, EMBEDDING, privacy, meddle=at(101, "embeddings", 1, late))
    checkpoint = found.serve()
    assert [(a.round, a.client, a.asked) for a in checkpoint.absent] == [(1, 1, "embeddings")]
    claim = checkpoint.release_plan.claim
    assert claim is not None
    for k in range(3):
        reported = json.loads((found.holder(k) / "privacy.json").read_text())
        assert reported["epsilon"]["pld"] == claim.pld
        assert reported["collusion"]["server_and_one_client"]["pld"] > claim.pld
        assert reported["beyond_plan"] == []
        assert set(reported["spent_by_channel"]) == {"counts", "embeddings", "updates"}
