"""A new channel is one module (`label_sum`) and one registration: everything else follows from it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privfair
from accountant.errors import InputError
from accountant.events import DiscreteLaplace
from accountant.ledger.ledger import Ledger
from privfair.channels.base import Declined, register, registered, require_planned, unregister
from privfair.config import Config
from privfair.federated.messages import Counts
from privfair.federated.release_plan import Claim
from privfair.federated.round import before_counts
from privfair.privacy.plan_report import plan_report
from privfair.privacy.planner import Planner
from privfair.runs.assembly import build
from privfair.runs.loop import run
from tests.channels.label_sum import NOISE, LabelSum, LabelSumChannel, LabelSumRequest
from tests.end_to_end.federations import toy
from tests.flower.federations import PRIVATE, deployment
from tests.flower.test_holder import changing
from tests.privacy.plans import planner, settle

ROUNDS, RETRIES = 3, 1
PRIVACY = {"count_noise": 0.5, "prediction_noise": 1.0, "noise_multiplier": 1.0, "sampling_rate": 0.5,
           "prediction_rate": 0.5, "min_count": 1, "retries": RETRIES}  # fmt: skip
EVENT = DiscreteLaplace(NOISE.scale, 1)


@pytest.fixture
def label_sum() -> Iterator[None]:
    register(LabelSumChannel())
    yield
    unregister("label_sum")


def tree(folder: Path, **privacy: Any) -> dict[str, Any]:
    return {
        "federation": {"rounds": ROUNDS, "batch_size": 10},
        "privacy": {**PRIVACY, **privacy},
        "run": {"ledger": f"sqlite:///{folder}/ledger.sqlite", "seed": 3},
    }


def claim(privacy: dict[str, Any]) -> float:
    """ε of the plan by RDP."""
    found = settle(planner(privacy, rounds=ROUNDS)).claim
    assert found is not None
    return found.rdp


def test_it_is_in_the_plan_and_makes_it_cost_more(label_sum: None) -> None:
    """The worst case composes it with all other channels, and the noise that is calibrated makes room for it."""
    whole = claim(PRIVACY)
    target = {"epsilon": 8.0, "sampling_rate": 0.5, "prediction_rate": 0.5, "target_method": "rdp"}
    updates = settle(planner(target, rounds=ROUNDS)).updates
    unregister("label_sum")
    without, before = claim(PRIVACY), settle(planner(target, rounds=ROUNDS)).updates
    register(LabelSumChannel())
    assert without < whole < without + (ROUNDS + RETRIES) / NOISE.scale + 1e-9
    assert updates is not None
    assert before is not None
    assert updates.noise_multiplier > before.noise_multiplier
    plan: Planner = planner(PRIVACY, rounds=ROUNDS)
    config = Config.model_validate({"privacy": PRIVACY, "federation": {"rounds": ROUNDS}})
    rows = plan_report(config, settle(plan), plan, budgeted=False)["channels"]
    (row,) = [row for row in rows if row["channel"] == "label_sum"]
    assert row["noise"] == "laplace, 40 labels"
    assert 0 < row["epsilon"] <= (ROUNDS + RETRIES) / NOISE.scale * 1.01


@pytest.mark.parametrize("engine", ["local", "stacked"])
def test_a_run_asks_for_it_pays_for_it_and_describes_it(tmp_path: Path, label_sum: None, engine: str) -> None:
    """Every client answers in every round; the algorithm finds the replies of the round in the state."""
    sections = tree(tmp_path)
    simulation = build(Config.build({**sections, "run": {**sections["run"], "engine": engine}}), toy())
    found = run(simulation).state.shared["label_sum"]
    assert sorted(found) == [0, 1, 2]
    for k, client in enumerate(simulation.federation.clients):
        reply = found[k]
        assert isinstance(reply, LabelSum)
        # P(|noise| > 20 scales) < e⁻²⁰
        assert abs(reply.total - client.train.labels.sum()) < 20 * NOISE.scale
    with Ledger(f"sqlite:///{tmp_path}/ledger.sqlite", create=False) as ledger:
        (name,) = ledger.runs("toy")
        rows = [s for _, s in ledger.spends(run=name) if s.channel == "label_sum"]
    assert sorted((s.client, s.round) for s in rows) == [(f"client{k}", n) for k in range(3) for n in range(ROUNDS)]
    assert {s.event for s in rows} == {EVENT}


def test_the_statement_has_its_noise_and_its_price(tmp_path: Path, label_sum: None) -> None:
    stated = privfair.train(tree(tmp_path), dataset=toy()).privacy
    assert stated["noise"]["label_sum"] == {"mechanism": "laplace", "scale": 40.0, "unit": "labels"}
    assert math.isclose(stated["by_channel"]["label_sum"]["rdp"], ROUNDS / NOISE.scale, rel_tol=0.2)
    assert stated["private"]
    assert stated["epsilon_of_plan"]["rdp"] >= stated["epsilon"]["rdp"] > stated["by_channel"]["label_sum"]["rdp"]


def less_noise(request: LabelSumRequest) -> LabelSumRequest:
    return replace(request, noise=replace(request.noise, scale=1.0))


FORGERIES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "less noise": (less_noise, "The label_sum are not asked for as agreed: noise."),
    "another round": (lambda r: replace(r, round=9), "The plan has 3 rounds, and no round 9."),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_data_holder_answers_what_is_planned_and_nothing_else(tmp_path: Path, label_sum: None, name: str) -> None:
    """Server and data holders of a deployment, with messages as bytes; one of them gets forged requests."""
    change, reason = FORGERIES[name]
    found = deployment(tmp_path, {"privacy": PRIVATE}, meddle=changing(change, LabelSumRequest))
    checkpoint = found.serve()
    assert [(a.round, a.client, a.asked, a.reason) for a in checkpoint.absent] == [
        (number, 0, "label_sum", reason) for number in range(3)
    ]
    assert not [s for s in found.spends(0) if s.channel == "label_sum"]
    assert [s.event for s in found.spends(1) if s.channel == "label_sum"] == [EVENT] * 3
    stated = json.loads((found.holder(1) / "privacy.json").read_text())
    assert stated["beyond_plan"] == []
    assert "label_sum" in stated["noise"]


def test_it_is_gone_when_it_is_not_registered(tmp_path: Path) -> None:
    assert "label_sum" not in {channel.name for channel in registered()}
    stated = privfair.train(tree(tmp_path), dataset=toy()).privacy
    assert "label_sum" not in stated["noise"]
    assert "label_sum" not in stated["by_channel"]


def test_a_reply_of_another_kind_is_refused(tmp_path: Path, label_sum: None) -> None:
    simulation = build(Config.build(tree(tmp_path)), toy())
    check: Any = simulation.backend.inner.check  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="reply of client 'a' must be LabelSum; found 'Counts'"):
        check("a", LabelSumRequest(0, NOISE), Counts(1, np.ones(2, dtype=np.int64)))
    with pytest.raises(InputError, match="label sum of client 'a' must be at most"):
        check("a", LabelSumRequest(0, NOISE), LabelSum(2**40))


def test_its_messages_must_have_names_of_their_own() -> None:
    class Channel(LabelSumChannel):
        name = "another_sum"
        request = type("AnotherRequest", (LabelSumRequest,), {"channel": "another_sum"})
        reply = type("Counts", (LabelSum,), {})

    with pytest.raises(InputError, match="a name of its own"):
        register(Channel())
    assert "another_sum" not in [channel.name for channel in registered()]


def test_a_private_run_has_nothing_on_demand(tmp_path: Path, label_sum: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a request is answered without a row in the ledger, so that a data holder declines it where there is one."""
    simulation = build(Config.build(tree(tmp_path)), toy())
    request = LabelSumRequest(0, NOISE)
    clients = simulation.spec.clients
    release_plan = replace(before_counts(clients, None), records=np.full(clients, 10), claim=Claim(1.0, 1.0, 1e-5))
    require_planned(request, simulation.spec, release_plan, 0)
    monkeypatch.setattr(LabelSumChannel, "phase", "on demand")
    with pytest.raises(Declined, match="A private run has no label_sum"):
        require_planned(request, simulation.spec, release_plan, 0)
    simulation.close()
