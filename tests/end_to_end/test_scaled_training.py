"""Whole runs on features that are scaled by released moments: engines, saved models, ledgers, masks and crashes."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privfair
from accountant.bounds import by_pld
from accountant.errors import InputError
from accountant.ledger.ledger import Ledger
from privfair.config import Config
from privfair.datasets.records import ClientData, Federation
from privfair.engines.local import InProcess
from privfair.federated.messages import MomentsRequest, ProductsRequest, TrainRequest
from privfair.privacy.plan_report import plan_report
from privfair.reports.run_page import run_page
from privfair.runs.assembly import RunSpec, build
from privfair.runs.defaults import STEP_OF_SUMS, Choice, settle
from privfair.runs.loop import RunOutcome, run
from tests.end_to_end.federations import toy

EPSILON = 8.0


def data(clients: int = 4, records: int = 60) -> Federation:
    """Unequal clients, whose features have very different scales within [−1, 1]."""
    found = toy(clients=clients, records=records)
    scale, shift = np.array([0.02, 0.1, 0.2, 0.002]), np.array([-0.9, 0.0, 0.3, 0.5])

    def scaled(part: Any) -> Any:
        return replace(part, features=np.clip(part.features * scale + shift, -1, 1).astype(np.float32))

    holders = [ClientData(c.name, scaled(c.train), scaled(c.test)) for c in found.clients]
    first = holders[0]
    holders[0] = ClientData(first.name, first.train.take(np.arange(25)), first.test)
    return replace(found, clients=tuple(holders))


def config(folder: Path, *sections: dict[str, Any], private: bool = True) -> Config:
    tree: dict[str, Any] = {
        "federation": {"scaling": "moments", "rounds": 3},
        "fairness": {"lambda": 0.5, "tracker": "embedding", "features": 4},
        "run": {"ledger": f"sqlite:///{folder}/ledger.sqlite", "reproducible_noise": private, "dtype": "float64"},
        "aggregation": {"masks": False},
    }
    if private:
        tree["privacy"] = {"epsilon": EPSILON, "min_count": 1, "records": 300}
    for section in sections:
        for name, table in section.items():
            tree[name] = {**tree.get(name, {}), **table}
    return Config.build(tree)


def trained(settings: Config, federation: Federation | None = None) -> RunOutcome:
    simulation = build(settings, federation or data())
    try:
        return run(simulation)
    finally:
        simulation.close()


def parameters(outcome: RunOutcome) -> np.ndarray:
    return outcome.simulation.model.parameters()


MASKED: dict[str, Any] = {"aggregation": {"scheme": "masked", "masks": True}}
WAYS: dict[str, tuple[dict[str, Any], bool]] = {
    "private, each its own noise": ({"aggregation": {"scheme": "plain"}}, True),
    "private, masked": (MASKED, True),
    "exact": ({}, False),
    "exact, masked": (MASKED, False),
}


# ---- the same result everywhere


@pytest.mark.parametrize("precondition", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_the_stacked_engine_trains_the_same_model(tmp_path: Path, way: str, precondition: bool) -> None:
    settings, private = WAYS[way]
    about = {"federation": {"precondition": precondition}}
    local, stacked = (
        trained(config(tmp_path / engine, settings, about, {"run": {"engine": engine}}, private=private))
        for engine in ("local", "stacked")
        if (tmp_path / engine).mkdir() is None
    )
    np.testing.assert_allclose(parameters(local), parameters(stacked), rtol=1e-9, atol=1e-12)
    one, other = local.state.release_plan.moments, stacked.state.release_plan.moments
    assert one is not None
    assert other is not None
    np.testing.assert_array_equal(one.moments, other.moments)
    assert (one.products is None) == (not precondition)
    assert local.state.release_plan.scaling is not None
    assert (local.state.release_plan.scaling.matrix is not None) == precondition


@pytest.mark.parametrize("way", ["exact", "exact, masked"])
def test_moments_without_privacy_are_those_of_all_training_records(tmp_path: Path, way: str) -> None:
    federation = data()
    outcome = trained(config(tmp_path, WAYS[way][0], private=False), federation)
    scaling, x = outcome.state.release_plan.scaling, federation.pooled_train().features.astype(np.float64)
    assert scaling is not None
    steps = 2.0**20 if way == "exact" else outcome.state.release_plan.moments.first.steps  # type: ignore[union-attr]
    bound = math.sqrt(8)
    np.testing.assert_allclose(scaling.centre, x.mean(axis=0), atol=bound / steps)
    np.testing.assert_allclose(np.square(scaling.scale), x.var(axis=0) + 1e-6, atol=4 * bound / steps)
    for client, holder in zip(outcome.simulation.clients, federation.clients, strict=True):
        expected = np.clip((holder.train.features - scaling.centre) / scaling.scale, -3, 3)
        if scaling.matrix is not None:
            expected = (expected - scaling.shift) @ scaling.matrix
        np.testing.assert_allclose(client.data.x.numpy(), expected, atol=1e-5)
        assert len(client.test_data.x) == len(holder.test)


def test_noise_on_moments_is_what_the_plan_says(tmp_path: Path) -> None:
    """The totals of 60 seeds around the exact ones: χ² with 60·8 degrees of freedom, false alarm 1e-6."""
    from scipy.stats import chi2

    federation = data()
    x = federation.pooled_train().features.astype(np.float64)
    exact, squares = np.concatenate([x.sum(axis=0), np.square(x).sum(axis=0)]), 0.0
    for seed in range(60):
        settings = config(tmp_path, {"run": {"seed": seed}, "federation": {"precondition": False}}, MASKED)
        simulation = build(settings, federation)
        try:
            from privfair.federated.round import begin

            sums = begin(simulation.server).release_plan.moments
        finally:
            simulation.close()
        assert sums is not None
        assert sums.moments is not None
        squares += float(np.square((sums.first.opened(sums.moments) - exact) / sums.first.error(sums.parts)).sum())
    low, high = chi2.ppf([5e-7, 1 - 5e-7], 60 * exact.size)
    assert low < squares < high


# ---- price


@pytest.mark.parametrize("counts", [{}, {"privacy": {"counts": "public"}}, MASKED])
@pytest.mark.parametrize("tracker", ["embedding", "samples"])
def test_the_plan_has_the_price_of_moments_and_meets_the_target(
    tmp_path: Path, counts: dict[str, Any], tracker: str
) -> None:
    if tracker == "samples" and counts is MASKED:
        pytest.skip("scores are not released in masked sums")
    samples = {"tracker": "samples", "features": None}
    fairness = {"fairness": {"lambda": 0.5, **(samples if tracker == "samples" else {"tracker": "embedding"})}}
    settings = config(tmp_path, counts, fairness, {"federation": {"precondition": True}})
    outcome = trained(settings)
    spec, plan = outcome.simulation.spec, outcome.state.release_plan
    assert spec.planner is not None
    assert plan.claim is not None
    assert plan.claim.pld <= EPSILON * (1 + 1e-9)
    planned = {channel.name: channel for channel in spec.planner.channels(plan)}
    assert planned["moments"].count == planned["products"].count == 1 + settings.privacy.retries
    report = plan_report(spec.config, plan, spec.planner, budgeted=False)
    assert {"counts", "moments", "products", "updates"} <= {row["channel"] for row in report["channels"]} | {"counts"}
    with Ledger(settings.run.ledger or "", create=False) as ledger:
        (name,) = [r for found in ledger.datasets() for r in ledger.runs(found.name)]
        rows = [spend for _, spend in ledger.spends(run=name)]
    found = Counter((row.client, row.channel) for row in rows)
    for client in outcome.simulation.federation.clients:
        for channel in ("moments", "products"):
            assert found[client.name, channel] == 1
            assert {row.group for row in rows if row.channel == channel} == {""}
    for channel in ("moments", "products"):
        event = next(row.event for row in rows if row.channel == channel)
        # the ledger's row is of the grid that was used, and within the planned price
        assert by_pld(getattr(event, "event", event), 1e-5) <= by_pld(planned[channel].event, 1e-5) * (1 + 1e-6)


def test_moments_and_products_have_their_shares_of_the_squared_budget(tmp_path: Path) -> None:
    """A tenth of μ², and a quarter of the rest, over all releases that the plan has room for."""
    from privfair.mechanisms.moments import gaussian_budget

    spec = RunSpec.of(config(tmp_path, {"federation": {"precondition": True}}), data().schema, 4)
    assert spec.planner is not None
    found = {channel.name: channel for channel in spec.planner.fixed()}
    for name, share in (("moments", 0.1), ("products", 0.225)):
        event: Any = found[name].event
        squared = found[name].count * (event.sensitivity / event.noise_scale) ** 2
        assert squared == pytest.approx(share * gaussian_budget(EPSILON, 1e-5) ** 2, rel=1e-6)


def test_a_budget_without_room_for_moments_is_not_touched(tmp_path: Path) -> None:
    settings = config(tmp_path, {"run": {"reproducible_noise": False}})
    from accountant.budget import Budget

    federation = data()
    with Ledger(settings.run.ledger or "") as ledger:
        ledger.set_budget(federation.name, Budget(1.0, 1e-5))
    declared = replace(federation, schema=replace(federation.schema, inferred=False))
    with pytest.raises(Exception, match="budget"):
        trained(settings, declared)
    with Ledger(settings.run.ledger or "", create=False) as ledger:
        assert not [s for r in ledger.runs(federation.name) for s in ledger.spends(run=r)]


# ---- saved models


@pytest.mark.parametrize("model", ["logistic", "mlp"])
@pytest.mark.parametrize("private", [False, True])
def test_a_saved_model_takes_features_as_they_were_before_scaling(tmp_path: Path, private: bool, model: str) -> None:
    about = {"model": {"name": model, "hidden": [3]}}
    settings = config(tmp_path, about, private=private)
    federation = data()
    result = privfair.train(settings, dataset=federation, out=tmp_path / "run")
    outcome_scores = result.model.scores(federation.pooled_test().features)
    again = privfair.load(tmp_path / "run")
    np.testing.assert_array_equal(again.scores(federation.pooled_test().features), outcome_scores)
    labels = federation.pooled_test().labels
    assert float((again.predict(federation.pooled_test().features) == labels).mean()) == result.accuracy
    assert len(np.unique(outcome_scores.round(6))) > 10
    if private:
        assert "means and variances of features" in run_page(tmp_path / "run")


def test_the_saved_scores_are_those_of_the_run(tmp_path: Path) -> None:
    federation = data()
    outcome = trained(config(tmp_path, {"federation": {"precondition": True}}), federation)
    from privfair.models import Scaled, exported, imported

    scaling = outcome.state.release_plan.scaling
    weights, found = imported(exported(outcome.simulation.model.module, scaling))
    assert found is not None
    module = Scaled(outcome.simulation.model.module, found)
    import torch

    raw = torch.tensor(federation.pooled_test().features, dtype=torch.float64)
    outcome.simulation.model.module.load_state_dict(weights)
    assert outcome.simulation.evaluator is not None
    expected = outcome.simulation.evaluator.predicted("test").predictions
    np.testing.assert_allclose(torch.sigmoid(module(raw).reshape(-1)).detach().numpy(), expected, atol=1e-12)


def test_half_a_scaling_is_no_model() -> None:
    import torch

    from privfair.models import imported

    with pytest.raises(InputError, match="whole scaling"):
        imported({"weight": torch.zeros(1), "scaling.centre": torch.zeros(1)})


# ---- crashes


class Crash(Exception):
    pass


@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize("kind", [MomentsRequest, ProductsRequest, TrainRequest])
def test_a_resumed_run_ends_with_the_same_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Any], masks: bool
) -> None:
    about = {"federation": {"precondition": True}}
    way = MASKED if masks else {"aggregation": {"scheme": "plain"}}
    (tmp_path / "whole").mkdir()
    whole = trained(config(tmp_path / "whole", about, way))
    exchange, count = InProcess.exchange, [0]

    def crashing(self: InProcess, clients: Any, request: Any) -> Any:
        found = exchange(self, clients, request)
        if any(isinstance(request(k), kind) for k in clients):
            count[0] += 1
            if count[0] == (2 if kind is TrainRequest else 1):
                raise Crash
        return found

    monkeypatch.setattr(InProcess, "exchange", crashing)
    with pytest.raises(Crash):
        privfair.train(config(tmp_path, about, way), dataset=data(), out=tmp_path / "run")
    monkeypatch.undo()
    result = privfair.train(resume=tmp_path / "run", dataset=data())
    lost = masks and kind is not TrainRequest  # what was masked before a crash is made, and paid, again: also counts
    if lost:
        assert len(result.rows) == len(whole.history)
        assert result.privacy["epsilon"]["pld"] <= EPSILON * (1 + 1e-9)
    else:
        assert list(result.rows) == whole.history
    with Ledger(f"sqlite:///{tmp_path}/ledger.sqlite", create=False) as ledger:
        (name,) = [r for found in ledger.datasets() for r in ledger.runs(found.name)]
        rows = Counter((s.client, s.channel) for _, s in ledger.spends(run=name))
    expected = 2 if lost else 1
    assert {rows[c.name, "moments"] for c in data().clients} == {expected}
    assert {rows[c.name, "products"] for c in data().clients} == {expected if kind is ProductsRequest else 1}


# ---- settled defaults


def chosen(found: tuple[Choice, ...]) -> dict[str, Any]:
    return {choice.key: choice.value for choice in found}


def settled(folder: Path, *sections: dict[str, Any], clients: int = 4, features: int = 4) -> dict[str, Any]:
    schema = replace(data().schema, features=tuple(f"x{i}" for i in range(features)))
    base: dict[str, Any] = {"fairness": {"target": 0.05}}
    for section in sections:
        for name, table in section.items():
            base[name] = {**base.get(name, {}), **table}
    return chosen(settle(Config.build(base), schema, clients).choices)


PRIVATE = {"privacy": {"epsilon": 1.0}}


def test_a_target_asks_for_scaling_and_rates_follow(tmp_path: Path) -> None:
    found = settled(tmp_path, PRIVATE)
    assert found["federation.scaling"] == "moments"
    assert found["federation.precondition"] is False  # nothing is declared
    assert found["federation.rounds"] == 60
    assert found["federation.learning_rate"] == pytest.approx(32 / 5)
    assert found["privacy.max_grad_norm"] == pytest.approx(math.sqrt(5) / 2)
    assert found["privacy.sampling_rate"] == 1.0
    assert found["federation.average_last"] == 0.4
    many = settled(tmp_path, PRIVATE, {"privacy": {"epsilon": 1.0, "records": 100_000}})
    assert (many["federation.precondition"], many["federation.rounds"]) == (True, 30)
    assert many["federation.learning_rate"] == 4.0
    free = settled(tmp_path)
    assert (free["federation.precondition"], free["federation.batch_size"]) == (True, 10**12)
    assert "privacy.max_grad_norm" not in free


def test_products_are_released_from_the_number_of_records_of_the_rule(tmp_path: Path) -> None:
    """n ≥ √c·(d + 1)^1.5/(μ·√¼), training records, with c copies of noise where each client adds its own."""
    from privfair.mechanisms.moments import gaussian_budget

    clients, features = 9, 20
    plain = {"aggregation": {"scheme": "plain", "masks": False}}
    least = math.sqrt(clients) * 21**1.5 / (gaussian_budget(1.0, 1e-5) * 0.5)
    for records, expected in ((least / 0.75 + 2, True), (least / 0.75 - 2, False)):
        about = {"privacy": {"epsilon": 1.0, "delta": 1e-5, "records": round(records)}}
        found = settled(tmp_path, plain, about, clients=clients, features=features)
        assert found["federation.precondition"] is expected


def test_named_keys_stay_and_runs_without_a_target_are_as_they_were(tmp_path: Path) -> None:
    named = {"federation": {"rounds": 7, "learning_rate": 0.3}, "privacy": {"epsilon": 1.0, "max_grad_norm": 2.0}}
    found = settled(tmp_path, named)
    assert not {"federation.rounds", "federation.learning_rate", "privacy.max_grad_norm"} & set(found)
    assert found["privacy.sampling_rate"] == 1.0
    old = settle(Config.build({**PRIVATE, "fairness": {"lambda": 1.0}}), data().schema, 4)
    assert (old.config.federation.scaling, old.config.federation.precondition) == (None, None)
    assert not [choice for choice in old.choices if choice.key in ("federation.rounds", "federation.scaling")]


def test_only_logistic_regression_gets_rates_and_products(tmp_path: Path) -> None:
    found = settled(tmp_path, PRIVATE, {"model": {"name": "mlp"}})
    assert found["federation.scaling"] == "moments"
    assert found["federation.precondition"] is False
    assert found["federation.learning_rate"] == STEP_OF_SUMS  # that of every step on a sum
    with pytest.raises(InputError, match="unless the model is logistic"):
        settled(tmp_path, PRIVATE, {"model": {"name": "mlp"}, "federation": {"precondition": True}})


def test_what_has_no_moments_says_why(tmp_path: Path) -> None:
    level = {"privacy": {"epsilon": 1.0, "updates": "client_level", "counts": "public"}}
    assert settled(tmp_path, level)["federation.scaling"] == "none"
    with pytest.raises(InputError, match="all records of a client"):
        settled(tmp_path, level, {"federation": {"scaling": "moments"}})
    with pytest.raises(InputError, match="sums are encrypted"):
        settled(tmp_path, {"aggregation": {"scheme": "bfv", "masks": False}, "federation": {"scaling": "moments"}})
    with pytest.raises(InputError, match="must not be true with"):
        settled(tmp_path, PRIVATE, {"federation": {"scaling": "none", "precondition": True}})


def test_a_record_that_is_not_there_shows_in_the_sum_by_its_own_vector(tmp_path: Path) -> None:
    """Neighbouring datasets through the channel itself: one record more at one client."""
    from privfair.mechanisms.entropy import SeededEntropy

    federation = data()
    simulation = build(config(tmp_path, {"federation": {"precondition": True}}), federation)
    try:
        from privfair.channels.moments import MomentsChannel, ProductsChannel
        from privfair.federated.round import begin

        plan = begin(simulation.server).release_plan
        channel: Any
        for channel in (MomentsChannel(), ProductsChannel()):
            request = channel.planned(plan, simulation.spec.plan, None, 1)
            assert request is not None
            exact = replace(request, release=replace(request.release, noise=None))
            holder = federation.clients[1]
            totals = []
            for count in (len(holder.train), len(holder.train) - 1):
                less = ClientData(holder.name, holder.train.take(np.arange(count)), holder.test)
                client = simulation.spec.client(1, less, simulation.model, simulation.replica, None)
                totals.append(channel.respond(exact, client, SeededEntropy(np.random.default_rng(0))).total)
            moved = totals[0] - totals[1]
            assert 0 < sum(int(v) ** 2 for v in moved) <= request.release.steps**2
    finally:
        simulation.close()
