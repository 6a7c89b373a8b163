"""Whole runs with the embedding tracker: against the tracker of samples, encrypted and not, private, resumed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privfair
from accountant.budget import Budget
from accountant.errors import InputError
from accountant.ledger.ledger import Ledger
from privfair.config import Config
from privfair.datasets.records import ClientData, Federation
from privfair.federated.exchange import answered
from privfair.federated.messages import Embeddings, EmbeddingsRequest, Missing, Tracked
from privfair.federated.round import begin
from privfair.privacy.planner import EndedAfterCounts
from privfair.runs.assembly import build
from privfair.runs.batched import build_stacked, run_stacked
from privfair.runs.loop import run
from tests.backends.settings import distance
from tests.end_to_end.federations import toy
from tests.end_to_end.test_private_training import QUICK, Stop, parameters, spends, stop_after

NOISE = {
    "counts": "laplace",
    "count_noise": 2.0,
    "prediction_noise": 10.0,
    "noise_multiplier": 2.0,
    "sampling_rate": 0.5,
}
EMBEDDING = {"tracker": "embedding"}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/ledger.sqlite"


def trained(**sections: Any) -> privfair.Result:
    data = sections.pop("dataset", None) or toy(records=120)
    return privfair.train(dataset=data, **{"federation": QUICK, "run": {"dtype": "float64"}, **sections})


@pytest.mark.parametrize(
    "shape",
    [{}, {"groups": 3}, {"attributes": 2}, {"task": "regression"}],
    ids=["two", "three", "attributes", "range"],
)
def test_without_noise_it_is_the_tracker_of_samples_with_all_scores_shared(shape: dict[str, Any]) -> None:
    """A Gaussian kernel is whole in 12 features: only sampling and left-out features could tell them apart."""
    data = toy(records=120, **shape)
    kernel = {"kernel": "gaussian:0.3", "lambda": 0.5}
    mine = trained(dataset=data, fairness={**EMBEDDING, **kernel, "features": 12})
    theirs = trained(dataset=data, fairness={**kernel, "samples": 10_000})
    np.testing.assert_allclose(parameters(mine), parameters(theirs), atol=1e-5)
    other = trained(dataset=data, fairness={**kernel, "samples": 5})
    assert np.abs(parameters(other) - parameters(theirs)).max() > 1e-4


@pytest.mark.parametrize(
    "notion", ["equal_opportunity", "predictive_equality", "equalized_odds", "conditional_statistical_parity"]
)
def test_every_notion_of_predictions(notion: str) -> None:
    kernel = {"kernel": "gaussian:0.3", "notion": notion}
    mine = trained(fairness={**EMBEDDING, **kernel, "features": 12})
    theirs = trained(fairness={**kernel, "samples": 10_000})
    np.testing.assert_allclose(parameters(mine), parameters(theirs), atol=1e-5)


def test_risk_parity_needs_a_range_and_follows_the_loss_within_it() -> None:
    kernel = {"kernel": "gaussian:0.5", "notion": "risk_parity"}
    mine = trained(fairness={**EMBEDDING, **kernel, "features": 20}, privacy={"score_range": [0.0, 4.0]})
    theirs = trained(fairness={**kernel, "samples": 10_000})
    np.testing.assert_allclose(parameters(mine), parameters(theirs), atol=1e-4)


def test_drift_correction_goes_with_it() -> None:
    sections = {"federation": {**QUICK, "drift_correction": "shared"}}
    kernel = {"kernel": "gaussian:0.3"}
    mine = trained(fairness={**EMBEDDING, **kernel, "features": 12}, **sections)
    theirs = trained(fairness={**kernel, "samples": 10_000}, **sections)
    np.testing.assert_allclose(parameters(mine), parameters(theirs), atol=1e-5)


def test_encrypted_is_plain_bit_for_bit() -> None:
    encrypted = trained(fairness=EMBEDDING, aggregation={"scheme": "bfv"})
    plain = trained(fairness=EMBEDDING, aggregation={"scheme": "plain", "quantise": True})
    np.testing.assert_array_equal(parameters(encrypted), parameters(plain))


@pytest.mark.parametrize("scheme", ["bfv", "plain"])
def test_a_private_run_and_its_books(url: str, scheme: str) -> None:
    data = toy(records=400)
    aggregation = {"scheme": scheme}
    result = trained(
        dataset=data, fairness=EMBEDDING, privacy=NOISE, run={"ledger": url}, aggregation=aggregation
    )  # fmt: skip
    reported = result.privacy
    rows = spends(url, reported["ledger"]["run"])
    assert Counter((s.client, s.channel) for s in rows) == {
        (f"client{k}", channel): count
        for k in range(3)
        for channel, count in (("counts", 1), ("embeddings", 2 * 2), ("updates", 2))
    }
    assert {s.event.noise_scale for s in rows if s.channel == "embeddings"} == {
        privfair_scale(reported["noise"]["embeddings"])
    }
    assert reported["private"]
    assert reported["noise"]["embeddings"]["features"] == 8
    assert reported["by_channel"]["embeddings"]["pld"] > 0
    assert "by the means of 8 features of all scores" in reported["objective"]
    seen = "noisy counts" if scheme == "bfv" else "noisy sums of features and counts"
    assert any(f"the server sees its {seen}." in line for line in reported["not_covered"])


def privfair_scale(noise: dict[str, Any]) -> float:
    """√(σ² − 2²) steps, σ = scale·1024, rounded down."""
    sigma = noise["scale"] / noise["grid_step"]
    return float(np.nextafter(np.sqrt((sigma - 2) * (sigma + 2)), 0.0))


@pytest.mark.parametrize("notion", ["equalized_odds", "risk_parity"])
@pytest.mark.parametrize("counts", ["laplace", "public"])
def test_a_budget_is_met(url: str, notion: str, counts: str) -> None:
    privacy = {"epsilon": 3.0, "counts": counts, "score_range": [0.0, 3.0], "sampling_rate": 0.3, "retries": 0}
    if notion != "risk_parity":
        privacy.pop("score_range")
    result = trained(
        dataset=toy(records=800), fairness={**EMBEDDING, "notion": notion}, privacy=privacy, run={"ledger": url}
    )
    assert result.privacy["epsilon"]["pld"] <= 3.0
    assert result.privacy["epsilon"]["pld"] > 2.9
    assert np.isfinite(parameters(result)).all()


def test_sums_without_noise_are_named(url: str) -> None:
    privacy = {k: v for k, v in NOISE.items() if k != "prediction_noise"} | {"predictions": "none"}
    reported = trained(fairness=EMBEDDING, privacy=privacy, run={"ledger": url}).privacy
    assert reported["claim"] == "No ε: embeddings left the clients without noise."
    assert reported["epsilon"] == {"rdp": None, "pld": None}


def test_stacked_private_runs_are_the_sequential_ones(url: str) -> None:
    data = toy(records=200)
    tree = {
        "fairness": EMBEDDING, "privacy": NOISE, "federation": {**QUICK, "rounds": 3}, "model": {"name": "mlp"},
        "run": {"ledger": url, "reproducible_noise": True, "dtype": "float64"},
    }  # fmt: skip
    stacked = run_stacked(build_stacked([Config.build(tree)], data))[0]
    assert distance(stacked, run(build(Config.build(tree), data))) <= 1e-9


def test_resume_costs_nothing_more_and_repeats_nothing(tmp_path: Path, url: str) -> None:
    arguments: dict[str, Any] = {
        "fairness": EMBEDDING, "privacy": NOISE, "federation": {**QUICK, "rounds": 3},
        "run": {"ledger": url, "reproducible_noise": True},
    }  # fmt: skip
    whole = privfair.train(**arguments, dataset=toy(records=120), out=tmp_path / "whole")
    with pytest.raises(Stop):
        privfair.train(**arguments, dataset=toy(records=120), out=tmp_path / "cut", report=stop_after(2))
    resumed = privfair.train(resume=tmp_path / "cut", dataset=toy(records=120))
    np.testing.assert_array_equal(parameters(resumed), parameters(whole))
    assert len(spends(url, resumed.privacy["ledger"]["run"])) == 3 * (1 + 3 * 3)


def test_a_group_without_records_at_a_client_is_nothing_of_a_problem() -> None:
    data = toy(records=120)
    first = data.clients[0]
    rows = np.flatnonzero(first.train.groups[:, 0] == 0)
    only = ClientData(first.name, first.train.take(rows), first.test)
    result = trained(dataset=Federation(data.name, data.schema, (only, *data.clients[1:])), fairness=EMBEDDING)
    assert np.isfinite(parameters(result)).all()


def test_more_records_than_a_sum_has_room_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privfair.runs.assembly.MODULI", {"bfv": 2**20 + 1, "plain": 2**20 + 1})
    with pytest.raises(InputError, match="every client must have at most 2730 records in a group for the embedding"):
        trained(dataset=toy(records=8000), fairness=EMBEDDING, aggregation={"scheme": "plain", "quantise": True})


# ---- noise in shares without masks, in runs that were begun so


SHARED = {**NOISE, "distributed_noise": True}


@pytest.mark.usefixtures("begun_earlier")
def test_noise_in_shares_has_both_epsilons_in_its_statement(url: str) -> None:
    result = trained(dataset=toy(4, 400), fairness=EMBEDDING, privacy=SHARED, run={"ledger": url})
    reported = result.privacy
    assert reported["noise"]["embeddings"]["shares"] == 3
    assert reported["collusion"]["server_and_one_client"]["pld"] > reported["epsilon"]["pld"]
    assert "as long as the server and a client do not pool what they see" in reported["claim"]
    whole = trained(dataset=toy(4, 400), fairness=EMBEDDING, privacy=NOISE, run={"ledger": f"{url}2"}).privacy
    assert whole["collusion"] is None
    assert whole["epsilon"] == reported["epsilon"]


@pytest.mark.usefixtures("begun_earlier")
def test_a_sum_has_the_noise_of_all_shares_in_every_cell(url: str) -> None:
    """Also in a cell that is left out somewhere: others count on that client's share."""
    data = toy(4, 400)
    first = data.clients[0]
    rows = np.flatnonzero(first.train.groups[:, 0] == 0)
    only = ClientData(first.name, first.train.take(rows), first.test)
    federation = Federation(data.name, data.schema, (only, *data.clients[1:]))
    privacy = {**SHARED, "prediction_noise": 300.0}
    tree = {"fairness": EMBEDDING, "privacy": privacy, "federation": QUICK, "run": {"ledger": url}}
    simulation = build(Config.build(tree), federation)
    found = []
    state = begin(simulation.server)
    assert state.release_plan.embedding is not None
    assert state.release_plan.embedding.cells[0].tolist() == [1, 0]
    noise, cells = state.release_plan.embedding.noise, state.release_plan.embedding.cells
    adder = simulation.server.algorithm.adder  # type: ignore[attr-defined]
    client_side = simulation.backend.inner.members[0].features._aggregator  # type: ignore[attr-defined]
    for number in range(12):
        replies = simulation.backend.exchange(
            range(4),
            lambda k, n=number: EmbeddingsRequest(n, state.model, cells[k], noise),  # type: ignore[misc]
        )
        got = answered(Embeddings, range(4), replies)
        total = adder.add([r.contribution for r in got.values()])
        found.append(client_side.open(total, number=number))
    noisy = np.array(found).reshape(12, 2, 8)
    # four shares of σ/√3 each; 12·8 draws around unknown means: five standard errors of a variance
    for cell in (0, 1):
        variance = noisy[:, cell].var(axis=0, ddof=1).mean()
        assert abs(variance / (noise.grid_scale**2 * 4 / 3) - 1) < 5 * np.sqrt(2 / (11 * 8))


@pytest.mark.usefixtures("begun_earlier")
def test_a_sum_of_too_few_is_neither_broadcast_nor_opened(url: str) -> None:
    tree = {"fairness": EMBEDDING, "privacy": SHARED, "federation": QUICK, "run": {"ledger": url}}
    simulation = build(Config.build(tree), toy(4, 400))
    from privfair.federated.messages import Embeddings

    state = begin(simulation.server)
    kept: list[Any] = []

    def ask(clients: Any, request: Any) -> list[Any]:
        replies = simulation.backend.exchange(clients, request)
        kept.extend(replies)
        return [Missing(3, "away") if k == 3 else reply for k, reply in zip(clients, replies, strict=True)]

    objective, _ = simulation.server.algorithm.objective(state, ask)
    assert isinstance(objective, Tracked)
    assert objective.shared.total == b""  # type: ignore[union-attr]
    algorithm: Any = simulation.server.algorithm
    three = algorithm.adder.add([r.contribution for r in kept[:3] if isinstance(r, Embeddings)])
    embedder = simulation.backend.inner.members[0].features  # type: ignore[attr-defined]
    sealed = replace(objective.shared, total=three)  # type: ignore[type-var]
    with pytest.raises(InputError, match="sum of features must be of at least 4 contributions; found 3"):
        embedder.open(sealed, state.round)


@pytest.mark.usefixtures("begun_earlier")
def test_data_with_a_budget_refuse_noise_in_shares(url: str) -> None:
    with Ledger(url) as ledger:
        ledger.set_budget("toy", Budget(5.0, 1e-5))
    words = "privacy.distributed_noise must be false for 'toy', which has a budget"
    with pytest.raises(InputError, match=words):
        trained(dataset=toy(4, 400), fairness=EMBEDDING, privacy=SHARED, run={"ledger": url})


@pytest.mark.usefixtures("begun_earlier")
def test_too_few_clients_with_enough_records_are_refused(url: str) -> None:
    data = toy(4, 400)
    tiny = ClientData("client0", data.clients[0].train.take([0]), data.clients[0].test)
    federation = Federation(data.name, data.schema, (tiny, *data.clients[1:]))
    words = (
        "They cost every client at most ε = 0.5, .* privacy.smallest_cohort must be at most .* take part, 3; found 4"
    )
    with pytest.raises(EndedAfterCounts, match=words):
        trained(dataset=federation, fairness=EMBEDDING, privacy=SHARED, run={"ledger": url, "reproducible_noise": True})
