"""Released moments over real messages: the same model, forged requests and terms, and servers that lie about totals."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from accountant.errors import InputError
from privfair.channels.base import Declined, channel_of, respond
from privfair.channels.moments import ProductsChannel
from privfair.config import Config
from privfair.deployment.flower.link import RECORD
from privfair.deployment.holder import Holder, require_acceptable
from privfair.federated.messages import Counts, MomentsRequest, ProductsRequest
from privfair.federated.release_plan import RELEASE_PLANS, ReleasePlan
from privfair.federated.round import begin
from privfair.runs.assembly import build
from privfair.runs.folder import read_weights
from privfair.runs.loop import run
from tests.flower.federations import PRIVATE, Deployment, deployment, merged
from tests.flower.memory_grid import Meddle
from tests.flower.test_holder import changing

SCALED: dict[str, Any] = {
    "model": {"name": "logistic"},
    "federation": {"rounds": 2, "scaling": "moments", "precondition": True},
    "privacy": {**PRIVATE, "moments_noise": 0.5, "products_noise": 0.5},
    "aggregation": {"scheme": "plain", "quantise": True},
}


def scaled(folder: Path, *more: dict[str, Any], meddle: Meddle | None = None) -> Deployment:
    return deployment(folder, SCALED, *more, **({} if meddle is None else {"meddle": meddle}))  # type: ignore[arg-type]


def test_data_holders_and_server_scale_alike_and_keep_it_in_their_models(tmp_path: Path) -> None:
    seeded = {"run": {"reproducible_noise": True}}
    found = scaled(tmp_path, seeded)
    checkpoint = found.serve()
    assert not checkpoint.absent
    moments = checkpoint.release_plan.moments
    assert moments is not None
    assert moments.complete
    settings = merged(Config.read(tmp_path / "holder-0.toml").as_tables(), {"run": {"engine": "local"}})
    settings["run"] |= {"ledger": f"sqlite:///{tmp_path}/local.sqlite"}
    simulation = build(Config.build(settings))
    try:
        outcome = run(simulation)
    finally:
        simulation.close()
    local = outcome.state.release_plan.moments
    assert local is not None
    np.testing.assert_array_equal(moments.moments, local.moments)
    np.testing.assert_array_equal(moments.products, local.products)
    np.testing.assert_allclose(checkpoint.replica["parameters"], simulation.replica.parameters, rtol=1e-6)
    weights = [read_weights(found.out / "model.safetensors")]
    weights += [read_weights(found.holder(k) / "model.safetensors") for k in range(3)]
    for one in weights:
        assert {"scaling.centre", "scaling.scale", "scaling.shift", "scaling.matrix"} <= set(one)
        assert all(np.array_equal(one[name], weights[0][name]) for name in one)
    rows = Counter(spend.channel for spend in found.spends(0))
    assert (rows["moments"], rows["products"]) == (1, 1)


def test_masked_moments_have_the_totals_of_the_same_run_in_one_process(tmp_path: Path) -> None:
    names = [f"client-{k}" for k in range(1, 6)]
    noise = {"count_noise": 3.0, "prediction_noise": 9.0, "noise_multiplier": 3.0, "min_count": 1}
    about: dict[str, Any] = {
        "fairness": {"tracker": "embedding", "samples": 12},
        "aggregation": {"scheme": "masked", "masks": True, "quantise": False},
        "run": {"clients": names, "reproducible_noise": True},
    }
    tree = {**SCALED, "privacy": {**noise, "moments_noise": 0.5, "products_noise": 0.5}}
    found = deployment(tmp_path, tree, about)
    checkpoint = found.serve()
    assert not checkpoint.absent
    own = {
        "data": {"name": "synthetic", "clients": 5, "records": 60},
        "federation": {"batch_size": 20, "learning_rate": 0.3},
        "run": {"seed": 4, "ledger": f"sqlite:///{tmp_path}/l.sqlite"},
    }
    local = build(Config.build(merged(tree, about, own)))
    try:
        plan = begin(local.server).release_plan
    finally:
        local.close()
    one, other = checkpoint.release_plan.moments, plan.moments
    assert one is not None
    assert other is not None
    assert one.first.masked
    np.testing.assert_array_equal(one.moments, other.moments)
    np.testing.assert_array_equal(one.products, other.products)
    rows = Counter(spend.channel for spend in found.spends(0))
    assert (rows["moments"], rows["products"]) == (1, 1)


FORGERIES: dict[str, tuple[type[Any], Callable[[Any], Any], str]] = {
    "no noise": (
        MomentsRequest,
        lambda r: replace(r, release=replace(r.release, noise=None)),
        "The moments are not asked for as agreed: release.",
    ),
    "a longer vector": (
        MomentsRequest,
        lambda r: replace(r, release=replace(r.release, bound=10 * r.release.bound)),
        "The moments are not asked for as agreed: release.",
    ),
    "products, without noise": (
        ProductsRequest,
        lambda r: replace(r, release=replace(r.release, noise=None)),
        "The products are not asked for as agreed: release.",
    ),
    "products, scaled otherwise": (
        ProductsRequest,
        lambda r: replace(r, scale=r.scale / 2),
        "The products are not asked for as agreed: scale.",
    ),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_requests_for_moments_that_are_not_the_plan_are_refused(tmp_path: Path, name: str) -> None:
    kind, change, reason = FORGERIES[name]
    found = scaled(tmp_path, meddle=changing(change, kind))
    checkpoint = found.serve()
    (absence,) = [a for a in checkpoint.absent if a.asked == kind.channel]
    assert absence.client == 0
    assert reason in absence.reason
    assert all(spend.channel != kind.channel for spend in found.spends(0))
    assert sum(spend.channel == kind.channel for spend in found.spends(1)) == 1
    moments = checkpoint.release_plan.moments
    assert moments is not None
    assert moments.complete  # of the others, as if nobody was absent


def test_moments_are_told_once_whatever_the_terms_say_later(tmp_path: Path) -> None:
    """A server that names other totals to one data holder: it takes part, for its ε does not rest on them."""

    def meddle(node: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        record: Any = message.content[RECORD]
        if node == 100 and record.get("terms"):
            terms = json.loads(record["terms"])
            if terms.get("moments", {}).get("moments"):
                terms["moments"]["moments"] = [3 * v for v in terms["moments"]["moments"]]
                record["terms"] = json.dumps(terms, separators=(",", ":"), sort_keys=True)
        return answer()

    found = scaled(tmp_path, meddle=meddle)
    found.serve()
    rows = Counter(spend.channel for spend in found.spends(0))
    assert rows["moments"] == 1
    assert rows["products"] <= 1


@pytest.fixture
def settled(tmp_path: Path) -> tuple[Holder, ReleasePlan, Counts]:
    """A data holder, the complete terms of a run, and what it told of its counts."""
    found = scaled(tmp_path, {"run": {"reproducible_noise": True}})
    checkpoint = found.serve()
    holder = Holder(Config.read(tmp_path / "holder-0.toml"), "client-1", tmp_path / "again")
    plan = checkpoint.release_plan
    return holder, plan, Counts(int(plan.records[0]), plan.cells[0])


def test_terms_with_impossible_moments_are_refused(settled: tuple[Holder, ReleasePlan, Counts]) -> None:
    holder, plan, own = settled
    moments = plan.moments
    assert moments is not None
    assert moments.moments is not None
    require_acceptable(plan, None, holder.spec, 0, own)
    for forged in (
        replace(moments, moments=moments.moments[:-1]),
        replace(moments, moments=None),
        replace(moments, moments=np.full_like(moments.moments, 2**62)),
        replace(moments, records=0),
    ):
        with pytest.raises(Declined, match="impossible moments"):
            require_acceptable(replace(plan, moments=forged), None, holder.spec, 0, own)
    assert moments.first.noise is not None
    quiet = replace(moments.first, noise=replace(moments.first.noise, multiplier=0.01))
    for forged in (replace(moments, first=quiet), replace(moments, second=None, products=None), None):
        with pytest.raises(Declined, match="not those that follow from the agreed plan"):
            require_acceptable(replace(plan, moments=forged), None, holder.spec, 0, own)


def test_totals_do_not_change_once_they_are_there(settled: tuple[Holder, ReleasePlan, Counts]) -> None:
    holder, plan, own = settled
    moments = plan.moments
    assert moments is not None
    assert moments.moments is not None
    bare = replace(plan, moments=moments.bare)
    half = replace(plan, moments=replace(moments, products=None))
    for before, after in ((bare, half), (half, plan), (bare, plan)):
        require_acceptable(after, before, holder.spec, 0, own)
    other = replace(plan, moments=replace(moments, moments=moments.moments + 1))
    with pytest.raises(Declined, match="have changed"):
        require_acceptable(other, half, holder.spec, 0, own)


def test_nothing_is_trained_before_features_are_scaled(settled: tuple[Holder, ReleasePlan, Counts]) -> None:
    from privfair.channels.base import PlannedRequests, require_planned

    holder, plan, _ = settled
    request = PlannedRequests(holder.spec.plan)("updates", plan, 0)[0]
    assert plan.moments is not None
    with pytest.raises(Declined, match="how features are scaled"):
        require_planned(request, holder.spec, replace(plan, moments=plan.moments.bare), 0)
    products = PlannedRequests(holder.spec.plan)("products", plan, None)[0]
    with pytest.raises(Declined, match="Products follow moments"):
        require_planned(products, holder.spec, replace(plan, moments=plan.moments.bare), 0)


@pytest.mark.parametrize("factor", [1e-6, 1.0, 1e6])
def test_any_scaling_leaves_a_record_within_its_bound(tmp_path: Path, factor: float) -> None:
    """What a server names as centre and scale may be anything: what leaves is cut after it was scaled."""
    settings = Config.build(merged(SCALED, {"run": {"ledger": f"sqlite:///{tmp_path}/l.sqlite"}}))
    simulation = build(settings)
    try:
        plan = begin(simulation.server).release_plan
        request = ProductsChannel().planned(plan, simulation.spec.plan, None, 0)
        assert request is not None
        forged = replace(
            request,
            centre=request.centre + factor,
            scale=request.scale * factor,
            release=replace(request.release, noise=None),
        )
        holder = simulation.federation.clients[0]
        sums = []
        for count in (len(holder.train), len(holder.train) - 1):
            less = replace(holder, train=holder.train.take(np.arange(count)))
            client = simulation.spec.client(0, less, simulation.model, simulation.replica, None)
            sums.append(respond(client, forged).total)  # type: ignore[union-attr]
        assert sum(int(v) ** 2 for v in sums[0] - sums[1]) <= request.release.steps**2
        assert channel_of(forged).name == "products"
    finally:
        simulation.close()


def test_terms_with_moments_survive_their_text(settled: tuple[Holder, ReleasePlan, Counts]) -> None:
    _, plan, _ = settled
    text = RELEASE_PLANS.to_text(plan)
    again = RELEASE_PLANS.from_text(text)
    assert RELEASE_PLANS.to_text(again) == text
    assert again.scaling is not None
    assert plan.scaling is not None
    assert np.array_equal(again.scaling.matrix, plan.scaling.matrix)
    with pytest.raises(InputError):
        RELEASE_PLANS.from_text(text.replace('"parts": 3', '"parts": "three"'))
