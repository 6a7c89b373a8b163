"""Whole runs that protect whole clients: against plain runs, encrypted and not, in shares, resumed, over budget."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privfair
from accountant.budget import Budget
from accountant.errors import InputError
from accountant.events import Adjacency, Unit
from accountant.ledger.ledger import Ledger
from privfair.config import Config
from privfair.datasets.records import ClientData, Federation
from privfair.federated.exchange import answered
from privfair.federated.messages import Missing, TrainRequest, Update
from privfair.federated.round import begin, run_round
from privfair.reports.run_page import run_page
from privfair.runs.assembly import build
from privfair.runs.batched import build_stacked, run_stacked
from privfair.runs.loop import run
from tests.backends.settings import distance
from tests.end_to_end.federations import toy
from tests.end_to_end.test_private_training import QUICK, Stop, parameters, spends, stop_after

LEVEL = {"updates": "client_level", "counts": "public"}
NOISE = {**LEVEL, "noise_multiplier": 3.0}
FEDAVG = {**QUICK, "method": "fedavg"}
EMBEDDING = {"tracker": "embedding"}
SHARED = {**NOISE, "distributed_noise": True}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/ledger.sqlite"


def trained(url: str, **sections: Any) -> privfair.Result:
    data = sections.pop("dataset", None) or toy(4, 120)
    options = {"ledger": url, "dtype": "float64", **sections.pop("run", {})}
    sums = {"masks": False, **sections.pop("aggregation", {})}
    return privfair.train(dataset=data, **{"federation": FEDAVG, "run": options, "aggregation": sums, **sections})


@pytest.mark.parametrize(
    "federation",
    [FEDAVG, {**FEDAVG, "clients_per_round": 2}, {**QUICK, "method": "local_fairness"}],
    ids=["fedavg", "cohort", "local fairness"],
)
def test_with_hardly_any_noise_and_a_wide_bound_it_is_the_plain_run(url: str, federation: dict[str, Any]) -> None:
    """Clients of different sizes: weights are those of the plain run. Noise of 2e-5 of a length of 2 is left."""
    sizes = [toy(4, n).clients[k] for k, n in enumerate((120, 60, 200, 80))]
    data = Federation("toy", toy().schema, tuple(sizes))
    privacy = {**LEVEL, "noise_multiplier": 2e-5, "max_update_norm": 2.0}
    mine = trained(url, dataset=data, federation=federation, privacy=privacy, aggregation={"scheme": "plain"})
    plain = privfair.train(dataset=data, federation=federation, run={"dtype": "float64"})
    np.testing.assert_allclose(parameters(mine), parameters(plain), atol=1e-3)
    assert np.abs(parameters(mine)).max() > 0.05


@pytest.mark.parametrize("fairness", [EMBEDDING, {"tracker": "samples", "samples": 8}], ids=["embedding", "samples"])
def test_encrypted_is_plain_bit_for_bit(url: str, fairness: dict[str, Any]) -> None:
    found = [
        trained(
            f"{url}{scheme}", fairness=fairness, federation={**QUICK, "drift_correction": "own"},
            privacy={**NOISE, "prediction_noise": 500.0 if fairness is EMBEDDING else 20.0},
            aggregation={"scheme": scheme}, run={"reproducible_noise": True},
        )
        for scheme in ("plain", "bfv")
    ]  # fmt: skip
    np.testing.assert_array_equal(parameters(found[0]), parameters(found[1]))
    assert found[0].privacy["epsilon"] == found[1].privacy["epsilon"]


def test_a_run_and_its_books(tmp_path: Path, url: str) -> None:
    privacy = {**LEVEL, "epsilon": 6.0, "retries": 0}
    result = trained(
        url, dataset=toy(4, 400), federation=QUICK, fairness=EMBEDDING, privacy=privacy, out=tmp_path / "r"
    )
    reported = result.privacy
    rows = spends(url, reported["ledger"]["run"])
    assert Counter((s.client, s.channel) for s in rows) == {
        (f"client{k}", channel): count
        for k in range(4)
        for channel, count in (("counts", 1), ("embeddings", 2), ("updates", 2))
    }
    units = {s.event.neighbouring.unit for s in rows if s.event.neighbouring is not None}
    assert units == {Unit.CLIENT}
    assert reported["private"]
    assert reported["unit"] == "client"
    assert 5.9 < reported["epsilon"]["pld"] <= 6.0
    assert reported["claim"].startswith("For every client with all of its records, everything that left the client is")
    assert reported["claim"].endswith("The same ε bounds replacing one record, which is a part of that.")
    assert "all records of one client replaced by as many others" in reported["neighbours"]
    assert reported["noise"]["updates"]["parameters"] == 5
    assert reported["noise"]["updates"]["max_update_norm"] == 1.0
    assert reported["by_group"] == {}
    assert set(reported["by_client"]) == {f"client{k}" for k in range(4)}
    assert not any("DP-SGD" in line or "floating point" in line for line in reported["not_covered"])
    assert reported["collusion"] is None
    page = run_page(tmp_path / "r")
    assert "the data holder exposed most" in page
    assert "one data holder, with all of its records," in page
    for word in ("the record exposed most", "the record that is exposed most", "for a record of that data holder"):
        assert word not in page


def test_training_that_runs_away_is_nothing_of_an_error(url: str) -> None:
    """What is no number is 0, what is long is cut: an answer has one form whatever the data."""
    wild = {**FEDAVG, "optimizer": "fedprox", "proximal": 1e6, "learning_rate": 1e6, "local_epochs": 10}
    found = trained(url, federation=wild, privacy=NOISE, aggregation={"scheme": "plain"})
    assert np.isfinite(parameters(found)).all()
    assert np.abs(parameters(found)).max() < 100


@pytest.mark.parametrize("scheme", ["plain", pytest.param("bfv", marks=pytest.mark.slow)])
def test_stacked_runs_are_the_sequential_ones(url: str, scheme: str) -> None:
    data = toy(4, 200)
    tree = {
        "fairness": EMBEDDING, "federation": {**QUICK, "rounds": 3}, "model": {"name": "mlp"},
        "privacy": {**NOISE, "prediction_noise": 500.0}, "aggregation": {"scheme": scheme},
        "run": {"ledger": url, "reproducible_noise": True, "dtype": "float64"},
    }  # fmt: skip
    stacked = run_stacked(build_stacked([Config.build(tree)], data))[0]
    # one step of the grid where a last bit of training crosses the middle between two
    assert distance(stacked, run(build(Config.build(tree), data))) <= 1e-5


def test_resume_costs_nothing_more_and_repeats_nothing(tmp_path: Path, url: str) -> None:
    arguments: dict[str, Any] = {
        "privacy": NOISE, "federation": {**FEDAVG, "rounds": 3}, "run": {"ledger": url, "reproducible_noise": True},
        "aggregation": {"masks": False},  # a masked part is never made or sent twice
    }  # fmt: skip
    whole = privfair.train(**arguments, dataset=toy(), out=tmp_path / "whole")
    with pytest.raises(Stop):
        privfair.train(**arguments, dataset=toy(), out=tmp_path / "cut", report=stop_after(2))
    resumed = privfair.train(resume=tmp_path / "cut", dataset=toy())
    np.testing.assert_array_equal(parameters(resumed), parameters(whole))
    assert len(spends(url, resumed.privacy["ledger"]["run"])) == 3 * (1 + 3)


def test_a_message_that_was_stored_is_sent_again(url: str) -> None:
    """Noise from the operating system: made again, it would be another message."""
    tree = {"privacy": NOISE, "federation": FEDAVG, "aggregation": {"masks": False}, "run": {"ledger": url}}
    simulation = build(Config.build(tree), toy())
    state = begin(simulation.server)
    work = simulation.server.plan.work(0)
    request = TrainRequest(
        0, state.model, simulation.server.algorithm.objective(state, simulation.backend.exchange)[0], work, 1 / 3,
        release=state.release_plan.release(0),
    )  # fmt: skip
    (first,) = simulation.backend.exchange([0], lambda _: request)
    assert simulation.gateway is not None
    again = build(simulation.config, toy(), credentials=simulation.credentials)
    (second,) = again.backend.exchange([0], lambda _: request)
    assert isinstance(first, Update)
    assert isinstance(second, Update)
    assert first.contribution == second.contribution


# ---- noise in shares


@pytest.mark.usefixtures("begun_earlier")
def test_noise_in_shares_has_both_epsilons_in_its_statement(url: str) -> None:
    reported = trained(url, privacy=SHARED).privacy
    assert reported["noise"]["updates"]["shares"] == 3
    assert reported["collusion"]["server_and_one_client"]["pld"] > reported["epsilon"]["pld"]
    assert "as long as the server and a client do not pool what they see" in reported["claim"]
    whole = trained(f"{url}2", privacy=NOISE).privacy
    assert whole["collusion"] is None
    assert whole["epsilon"] == reported["epsilon"]


@pytest.mark.usefixtures("begun_earlier")
def test_a_sum_of_too_few_is_neither_stepped_nor_opened(url: str) -> None:
    tree = {"privacy": SHARED, "federation": FEDAVG, "aggregation": {"masks": False}, "run": {"ledger": url}}
    simulation = build(Config.build(tree), toy(4, 120))
    state, inner = begin(simulation.server), simulation.backend.exchange
    kept: list[Any] = []

    def exchange(clients: Any, request: Any) -> list[Any]:
        replies = inner(clients, request)
        kept.extend(replies)
        return [Missing(3, "away") if k == 3 else reply for k, reply in zip(clients, replies, strict=True)]

    object.__setattr__(simulation.backend, "exchange", exchange)
    after = run_round(state, simulation.server)
    assert after.model is state.model
    assert [a.client for a in after.absent] == [3]
    updates = answered(Update, range(4), kept)
    few = simulation.server.adder.add([updates[k].contribution for k in range(3)])
    with pytest.raises(InputError, match=r"sum must be of at least 4 contributions; found 3"):
        simulation.replica.advance(few, 1.0, state.release_plan.sum_step(0))
    simulation.replica.advance(simulation.server.adder.add([u.contribution for u in updates.values()]), 1.0, 1e-6)


@pytest.mark.usefixtures("begun_earlier")
def test_too_few_clients_with_records_are_refused_before_anything_is_told(url: str) -> None:
    data = toy(4, 120)
    nobody = ClientData("client0", data.clients[0].train.take([]), data.clients[0].test)
    words = "privacy.smallest_cohort must be at most the number of clients that take part, 3; found 4"
    with pytest.raises(InputError, match=words):
        trained(url, dataset=Federation(data.name, data.schema, (nobody, *data.clients[1:])), privacy=SHARED)


# ---- data with a budget


def test_a_budget_for_records_is_not_one_for_clients(url: str) -> None:
    with Ledger(url) as ledger:
        ledger.set_budget("toy", Budget(5.0, 1e-5, Adjacency.REPLACE_ONE))
    words = "privacy.updates must protect a record, as the budget of 'toy' does; found 'client_level'"
    with pytest.raises(InputError, match=words):
        trained(url, privacy={**LEVEL, "epsilon": 1.0})


@pytest.mark.usefixtures("begun_earlier")
def test_a_budget_for_clients(url: str) -> None:
    with Ledger(url) as ledger:
        ledger.set_budget("toy", Budget(9.0, 1e-5, Adjacency.REPLACE_ONE, Unit.CLIENT))
    result = trained(url, privacy={**LEVEL, "epsilon": 4.0})
    assert result.privacy["private"]
    with pytest.raises(InputError, match=r"privacy.updates must protect a client, as the budget of 'toy' does"):
        trained(url, privacy={"epsilon": 1.0, "counts": "public"}, federation=QUICK)
    with pytest.raises(InputError, match=r"privacy.distributed_noise must be false for 'toy', which has a budget"):
        trained(url, privacy=SHARED)
