"""Whole updates with noise over the real messages: what a holder refuses, who is absent, what is never opened."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from safetensors.numpy import load_file

from accountant.events import Unit
from privfair.federated.exchange import Unfinished
from privfair.federated.messages import TrainRequest
from tests.flower.federations import deployment
from tests.flower.test_faults import ENCRYPTED, at, late
from tests.flower.test_holder import changing

PLAIN = {"aggregation": {"scheme": "plain"}}
LEVEL = {"updates": "client_level", "counts": "public", "noise_multiplier": 2.0}
PLAN = {"privacy": LEVEL, "federation": {"method": "fedavg"}}
AS_AGREED = "The training is not asked for as agreed: clipping and noise."


def with_release(**changes: Any) -> Callable[[Any], Any]:
    return lambda request: replace(request, release=replace(request.release, **changes))


FORGERIES: dict[str, Callable[[Any], Any]] = {
    "no noise": lambda request: replace(request, release=None),
    "less noise": lambda request: with_release(noise=replace(request.release.noise, multiplier=1.0))(request),
    "shares": lambda request: with_release(noise=replace(request.release.noise, shares=2))(request),
    "longer": with_release(max_norm=5.0),
    "lighter": with_release(portion=0.5),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_requests_that_are_not_the_plan_are_refused(tmp_path: Path, name: str) -> None:
    found = deployment(tmp_path, PLAN, PLAIN, meddle=changing(FORGERIES[name], TrainRequest))
    absences = found.serve().absent
    assert {a.client for a in absences} == {0}
    assert all(AS_AGREED in a.reason for a in absences)
    assert all(spend.channel != "updates" for spend in found.spends(0))
    assert sum(spend.channel == "updates" for spend in found.spends(1)) == 3


def test_who_does_not_answer_is_not_in_the_sum_and_encrypted_is_plain(tmp_path: Path) -> None:
    models = []
    for name, scheme in (("plain", PLAIN), ("bfv", ENCRYPTED)):
        (tmp_path / name).mkdir()
        seeded = {"run": {"reproducible_noise": True}}
        found = deployment(tmp_path / name, PLAN, scheme, seeded, meddle=at(101, "updates", 1, late))
        (absence,) = found.serve().absent
        assert (absence.round, absence.client, absence.asked) == (1, 1, "updates")
        models.append([load_file(found.holder(k) / "model.safetensors") for k in range(3)])
    for holder in range(3):
        for name, values in models[0][0].items():
            np.testing.assert_array_equal(models[0][holder][name], values)
            np.testing.assert_array_equal(models[1][holder][name], values)


@pytest.mark.usefixtures("begun_earlier")
def test_shared_noise_with_features_states_both_epsilons_and_too_few_are_waited_for(tmp_path: Path) -> None:
    """A sum of two could not be opened: the round is asked again, and the answer that was lost comes, the same one."""
    privacy = {**LEVEL, "noise_multiplier": 9.0, "prediction_noise": 900.0, "distributed_noise": True}
    plan = {"privacy": privacy, "fairness": {"tracker": "embedding"}}
    lost: list[int] = []

    def once(message: Message, answer: Callable[[], Message]) -> Message | None:
        lost.append(1)
        return late(message, answer) if len(lost) == 1 else answer()

    found = deployment(tmp_path, plan, ENCRYPTED, meddle=at(101, "updates", 1, once))
    checkpoint = found.serve()
    assert (len(lost), checkpoint.absent) == (2, ())
    assert int(checkpoint.replica["sums"][0]) == 3
    for k in range(3):
        assert sorted(s.round for s in found.spends(k) if s.channel == "updates") == [0, 1, 2]
    claim = checkpoint.release_plan.claim
    assert claim is not None
    for k in range(3):
        reported = json.loads((found.holder(k) / "privacy.json").read_text())
        assert (reported["unit"], reported["adjacency"]) == ("client", "replace-one")
        assert reported["epsilon"]["pld"] == claim.pld
        assert reported["collusion"]["server_and_one_client"]["pld"] > claim.pld
        assert reported["beyond_plan"] == []
        units = {s.event.neighbouring.unit for s in found.spends(k) if s.event.neighbouring is not None}
        assert units == {Unit.CLIENT}


def test_sums_on_another_grid_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from privfair.deployment import remote

    inner = remote.pack_sums
    monkeypatch.setattr(remote, "pack_sums", lambda sums: inner([replace(s, step=2 * s.step) for s in sums]))
    with pytest.raises(
        Unfinished, match=r"client 0: The sums are not on the agreed grid\.; client 1: The sums are not"
    ):
        deployment(tmp_path, PLAN, ENCRYPTED).serve()
