"""Clients that do not answer: left out, written down, and the round goes on with the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accountant.errors import InputError
from privfair.config import Config
from privfair.federated.exchange import Absence, singles
from privfair.federated.messages import Answered, Asked, BundleReply, Missing
from privfair.federated.round import share_of
from privfair.runs.assembly import Simulation, build
from privfair.runs.folder import RunDirectory
from privfair.runs.loop import RunOutcome, run
from privfair.runs.summary import summarise
from tests.end_to_end.federations import toy

Gone = Callable[[int, str, int | None], bool]  # (client, what is asked, round) -> whether it stays silent
NOISE = {"counts": "laplace", "count_noise": 1.0, "prediction_noise": 1.0, "noise_multiplier": 1.0}
PRIVATE = {**NOISE, "sampling_rate": 0.5, "prediction_rate": 0.5}


class Unreliable:
    """A backend some of whose clients stay silent at times; the others are asked as ever."""

    def __init__(self, inner: Any, gone: Gone) -> None:
        self.inner, self.gone = inner, gone

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def exchange(self, clients: Sequence[int], request: Callable[[int], Asked]) -> list[Answered]:
        asked = {k: request(k) for k in clients}

        def silent(k: int) -> bool:
            return any(self.gone(k, s.channel, getattr(s, "round", None)) for s in singles(asked[k]))

        there = [k for k in clients if not silent(k)]
        replies = dict(zip(there, self.inner.exchange(there, asked.__getitem__), strict=True))
        return [replies.get(k, Missing(k, "gone")) for k in clients]


def config(**sections: dict[str, Any]) -> Config:
    tree: dict[str, Any] = {
        "federation": {"rounds": 4, "batch_size": 16, "learning_rate": 0.3},
        "fairness": {"samples": 12, "lambda": 0.5},
        "model": {"name": "mlp", "hidden": [3]},
    }
    for name, table in sections.items():
        tree[name] = {**tree.get(name, {}), **table}
    return Config.build(tree)


def simulation(settings: Config, gone: Gone, clients: int = 4) -> Simulation:
    made = build(settings, toy(clients=clients, records=40))
    made.backend.inner = Unreliable(made.backend.inner, gone)
    return made


def trained(settings: Config, gone: Gone, directory: RunDirectory | None = None) -> RunOutcome:
    return run(simulation(settings, gone), directory)


def nobody(client: int, asked: str, number: int | None) -> bool:
    return False


def second_in_round_one(client: int, asked: str, number: int | None) -> bool:
    return client == 1 and asked == "updates" and number == 1


def test_encrypted_and_plain_quantised_take_the_same_step_without_a_client() -> None:
    models = []
    for aggregation in ({"scheme": "plain", "quantise": True}, {"scheme": "bfv"}):
        outcome = trained(config(aggregation=aggregation), second_in_round_one)
        models.append(outcome.simulation.replica.state())
        assert outcome.state.absent == (Absence(1, 1, "updates", "gone"),)
    assert models[0].keys() == models[1].keys()
    for name, values in models[0].items():
        np.testing.assert_array_equal(values, models[1][name])


def test_the_step_is_the_mean_over_those_who_answered() -> None:
    """Against a federation in which the silent client trains, too, but with its weight taken off by hand."""
    settings = config(federation={"rounds": 1, "method": "fedavg"})
    made = simulation(settings, lambda k, asked, _: k == 1 and asked == "updates")
    start = made.replica.parameters.copy()
    outcome = run(made)
    found = outcome.simulation.replica.parameters - start
    alone = []
    for kept in (0, 2, 3):
        one = simulation(settings, lambda k, asked, _, kept=kept: k != kept and asked == "updates")  # type: ignore[misc]
        alone.append(run(one).simulation.replica.parameters - start)
    weights = outcome.state.release_plan.weights[[0, 2, 3]]
    np.testing.assert_allclose(found, np.average(alone, axis=0, weights=weights), rtol=1e-4, atol=1e-7)


def test_a_round_in_which_nobody_trains_leaves_the_model() -> None:
    for aggregation in ({"scheme": "plain"}, {"scheme": "bfv"}):
        made = simulation(config(aggregation=aggregation), lambda k, asked, number: asked == "updates" and number == 3)
        before = run(simulation(config(federation={"rounds": 3}, aggregation=aggregation), nobody))
        after = run(made)
        np.testing.assert_array_equal(after.simulation.replica.parameters, before.simulation.replica.parameters)
        assert after.state.round == 4
        assert len(after.state.absent) == 4


def test_scores_of_those_who_answered_are_enough() -> None:
    quiet = trained(config(), lambda k, asked, _: k == 2 and asked == "predictions")
    silent = trained(config(), lambda k, asked, _: asked == "predictions")
    task_alone = trained(config(fairness={"lambda": 0.0}), nobody)
    full = trained(config(), nobody)
    assert {a.asked for a in quiet.state.absent} == {"predictions"}
    assert not np.array_equal(quiet.simulation.replica.parameters, full.simulation.replica.parameters)
    np.testing.assert_allclose(
        silent.simulation.replica.parameters, task_alone.simulation.replica.parameters, atol=1e-6
    )


@pytest.mark.parametrize("method", ["fairfed", "fedfb", "agnostic"])
def test_methods_that_need_figures_use_those_that_came(method: str) -> None:
    some = trained(config(federation={"method": method}), lambda k, asked, _: k == 0 and asked == "measures")
    none = trained(config(federation={"method": method}), lambda k, asked, _: asked == "measures")
    for outcome in (some, none):
        assert np.isfinite(outcome.simulation.replica.parameters).all()
        weights = outcome.simulation.server.algorithm.weights(outcome.state, outcome.state.algorithm)
        assert weights.sum() == pytest.approx(1)
        assert weights.min() >= 0


def test_who_tells_no_counts_takes_no_part_until_it_does() -> None:
    met: list[tuple[int, str]] = []

    def gone(client: int, asked: str, number: int | None) -> bool:
        met.append((client, asked))
        return client == 3 and asked == "counts" and met.count((3, "counts")) < 3  # at the start and in round 0

    outcome = trained(config(), gone)
    absent = [(a.round, a.asked) for a in outcome.state.absent]
    assert absent == [(None, "counts"), (0, "counts")]
    assert outcome.state.uncounted == ()
    assert outcome.state.release_plan.records[3] > 0
    assert met.count((3, "updates")) == 3  # rounds 1, 2, 3


def test_latecomers_are_not_asked_where_rates_follow_from_counts(tmp_path: Path) -> None:
    # without masks; no prediction_rate: planned from counts
    privacy = {"epsilon": 40.0, "counts": "laplace", "sampling_rate": 0.5, "delta": 1e-3}
    ledger = {"ledger": f"sqlite:///{tmp_path}/ledger.sqlite", "reproducible_noise": True}
    asked: list[int] = []

    def gone(client: int, what: str, number: int | None) -> bool:
        asked.extend([client] if what == "counts" else [])
        return client == 3 and what == "counts"

    outcome = trained(config(privacy=privacy, run=ledger, federation={"rounds": 2}), gone)
    assert asked.count(3) == 1
    assert outcome.state.uncounted == (3,)
    assert outcome.state.release_plan.records[3] == 0


def test_a_run_without_anybody_does_not_begin() -> None:
    with pytest.raises(InputError, match=r"clients must answer, at least one; found .none.\. gone"):
        trained(config(), lambda k, asked, _: True)


def test_absences_are_in_the_metrics_and_survive_a_resume(tmp_path: Path) -> None:
    ledger = {"ledger": f"sqlite:///{tmp_path}/ledger.sqlite", "reproducible_noise": True}
    settings = config(privacy=PRIVATE, run=ledger)
    directory = RunDirectory.create(tmp_path / "run", settings)
    made = simulation(settings, second_in_round_one)
    whole = run(made, directory)
    checkpoint = directory.read_checkpoint()
    assert checkpoint is not None
    assert checkpoint.absent == whole.state.absent == (Absence(1, 1, "updates", "gone"),)
    metrics = summarise(whole, None)
    assert metrics["absent"] == [{"round": 1, "client": "client1", "asked": "updates", "reason": "gone"}]
    assert metrics["privacy"]["epsilon_of"] == "plan"
    assert metrics["privacy"]["epsilon"]["pld"] >= run_of_releases(whole)
    assert any("did not answer" in line for line in metrics["privacy"]["not_covered"])


def run_of_releases(outcome: RunOutcome) -> float:
    """ε of what was really released."""
    state = replace(outcome.state, absent=())
    return float(summarise(replace(outcome, state=state), None)["privacy"]["epsilon"]["pld"])


@pytest.mark.parametrize("engine", ["local", "stacked"])
def test_lagged_scores_need_one_exchange_a_round(engine: str, tmp_path: Path) -> None:
    exchanges: list[set[str]] = []
    settings = config(federation={"lagged_scores": True}, run={"engine": engine})
    made = simulation(settings, nobody)
    inner = made.backend.inner.exchange

    def counted(clients: Sequence[int], request: Callable[[int], Asked]) -> list[Answered]:
        asked = {k: request(k) for k in clients}
        exchanges.append({s.channel for a in asked.values() for s in singles(a)})
        return list(inner(clients, asked.__getitem__))

    made.backend.inner.exchange = counted
    run(made)
    both = {"predictions", "updates"}
    assert exchanges == [{"counts"}, {"predictions"}, both, both, both, {"updates"}]


def test_lagged_scores_release_as_often_and_agree_between_engines(tmp_path: Path) -> None:
    ledgers = {name: f"sqlite:///{tmp_path}/{name}.sqlite" for name in ("local", "stacked", "ordinary")}
    spends, models = {}, {}
    for name, url in ledgers.items():
        engine = "local" if name == "ordinary" else name
        options = {"ledger": url, "reproducible_noise": True, "engine": engine, "dtype": "float64"}
        made = build(config(privacy=PRIVATE, run=options, federation={"lagged_scores": name != "ordinary"}), toy(3))
        models[name] = run(made).simulation.replica.parameters
        assert made.run_ledger is not None
        rows = made.run_ledger.ledger.spends(run=made.credentials.run)
        spends[name] = sorted((s.client, s.channel, s.group, s.round or 0, s.count) for _, s in rows)
    assert spends["local"] == spends["stacked"] == spends["ordinary"]
    np.testing.assert_allclose(models["local"], models["stacked"], atol=1e-8)
    assert not np.allclose(models["local"], models["ordinary"], atol=1e-4)


def test_a_lagged_run_resumes_with_its_scores(tmp_path: Path) -> None:
    settings = config(federation={"lagged_scores": True})
    whole = run(build(settings, toy(3)))
    directory = RunDirectory.create(tmp_path / "run", settings)
    short = build(config(federation={"lagged_scores": True}), toy(3))
    algorithm = replace(short.server.algorithm, rounds=4)  # type: ignore[type-var]
    spec = replace(short.spec, config=config(federation={"rounds": 2}))
    part = replace(short, spec=spec, server=replace(short.server, algorithm=algorithm))
    run(part, directory)
    again = run(build(settings, toy(3)), directory)
    np.testing.assert_array_equal(again.simulation.replica.parameters, whole.simulation.replica.parameters)


def test_a_bundle_is_answered_as_a_bundle() -> None:
    made = simulation(config(federation={"lagged_scores": True}), nobody)
    inner = made.backend.inner.exchange

    def half(clients: Sequence[int], request: Callable[[int], Asked]) -> list[Answered]:
        replies = inner(clients, request)
        return [BundleReply(r.replies[:1]) if isinstance(r, BundleReply) else r for r in replies]

    made.backend.inner.exchange = half
    with pytest.raises(InputError, match="reply must have 2 answers; found 1"):
        run(made)


def test_share_of_the_weights() -> None:
    weights = np.array([0.1, 0.2, 0.3, 0.4])
    assert share_of(weights, [0, 1, 2, 3], [0, 1, 2, 3]) == 1.0
    assert share_of(weights, [0, 1, 3], [1, 3]) == pytest.approx(6 / 7)
    assert share_of(weights, [0, 1], []) == 0.0
    assert share_of(weights, [], []) == 0.0
    assert share_of(np.zeros(2), [0, 1], [1]) == 0.0
