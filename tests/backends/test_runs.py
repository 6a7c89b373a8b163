"""Whole stacks: order, chunks, errors, reports, evaluation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from accountant.errors import InputError
from privfair.channels.base import ReplyCheck
from privfair.engines.batched.backend import Stacked
from privfair.engines.batched.evaluation import energy_mmd2
from privfair.engines.batched.networks import cut
from privfair.engines.evaluation import Row
from privfair.fairness.metrics import Predicted, penalty_mmd2
from privfair.fairness.tracking import SharedScores
from privfair.federated.exchange import size
from privfair.federated.messages import LocalWork, Measures, Parameters, Scores, Tracked, TrainRequest
from privfair.kernels.families import EnergyKernel
from privfair.runs.assembly import build
from privfair.runs.batched import build_stacked, fitting, planned_numbers, run_stacked
from privfair.runs.loop import RunOutcome, run
from tests.backends.settings import config, distance, federation


def test_chunks_of_runs_change_nothing() -> None:
    data = federation()
    configs = [config(rounds=2, seed=s) for s in range(5)]
    whole = run_stacked(build_stacked(configs, data), threads=1)
    parts = run_stacked(build_stacked(configs, data), threads=1, runs_at_once=2)
    assert [o.simulation.config.run.seed for o in parts] == list(range(5))
    assert max(distance(a, b) for a, b in zip(whole, parts, strict=True)) <= 1e-12


def test_lines_and_outcomes_are_told_as_they_come() -> None:
    lines: list[tuple[int, int | float | None]] = []
    ends: list[int] = []

    def report(number: int, row: Row) -> None:
        lines.append((number, row["round"]))

    def finished(number: int, outcome: RunOutcome) -> None:
        assert outcome.state.round == outcome.simulation.config.federation.rounds
        ends.append(number)

    configs = [config(rounds=3), config(rounds=1)]
    run_stacked(build_stacked(configs, federation()), report=report, finished=finished)
    assert lines == [(0, 1), (1, 1), (0, 2), (0, 3)]
    assert ends == [1, 0]


def test_a_run_that_fails_does_not_stop_the_others() -> None:
    data = federation(task="regression")  # squared error: a wild rate diverges
    configs = [config(rounds=20, learning_rate=rate, model="logistic") for rate in (0.05, 1e6, 0.05)]
    errors: dict[int, Exception] = {}
    outcomes = run_stacked(build_stacked(configs, data), failed=errors.__setitem__)
    assert len(outcomes) == 2
    assert list(errors) == [1]
    with pytest.raises(InputError) as alone:
        run(build(configs[1], data))
    assert str(errors[1]) == str(alone.value)
    with pytest.raises(InputError, match="must be finite"):
        run_stacked(build_stacked(configs, data))


def test_the_number_of_threads_is_given_back() -> None:
    before = torch.get_num_threads()
    run_stacked(build_stacked([config()], federation()), threads=1)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("wrong", [{"threads": 0}, {"runs_at_once": 0}])
def test_wrong_numbers_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InputError, match="must be 1 or more"):
        run_stacked([], **wrong)  # type: ignore[arg-type]


def test_runs_on_the_same_data_share_their_tensors() -> None:
    first, second = build_stacked([config(), config(**{"lambda": 0.1})], federation())
    for a, b in zip(first.clients, second.clients, strict=True):
        assert a.data.x.data_ptr() == b.data.x.data_ptr()
        assert a.test_data.x.data_ptr() == b.test_data.x.data_ptr()


def test_a_single_run_can_use_the_backend_directly() -> None:
    simulation = build(config(rounds=1), federation())
    clients = simulation.clients
    adder, size = simulation.server.adder, simulation.replica.contribution_size
    backend = Stacked(clients, ReplyCheck(adder, cells=len(simulation.cells), contribution_size=size))
    simulation.backend.inner = backend
    assert backend.clients == 5
    assert distance(run(simulation), run(build(config(rounds=1), federation()))) <= 1e-9


def test_mmd2_of_many_runs_is_that_of_each() -> None:
    data = federation(groups=3)
    simulation = build(config(), data)
    records = data.pooled_train()
    scores = np.round(np.random.default_rng(0).random((4, len(records))), 2)
    found = energy_mmd2(scores, simulation.cells, simulation.cells.membership(records))
    for row, value in zip(scores, found, strict=True):
        predicted = Predicted(records, row, row, row)
        assert value == pytest.approx(penalty_mmd2(predicted, simulation.cells, EnergyKernel()), abs=1e-12)


def test_jobs_are_cut_by_their_largest() -> None:
    assert list(cut([5, 4, 1, 1, 9], lambda n: n, 10)) == [[5, 4], [1, 1], [9]]
    assert list(cut([50], lambda n: n, 10)) == [[50]]


def test_bytes_are_counted_as_without_shortcuts() -> None:
    shared = SharedScores("energy", 1.0, (np.zeros(3), np.zeros(2)), (np.ones(3), np.ones(2)), np.ones(2), 9.0, None)
    request = TrainRequest(2, Parameters(np.zeros(7)), Tracked(shared), LocalWork(1, None, 0.1), 0.5)
    known: dict[int, int] = {}
    for value in (request, request, Scores((np.zeros(4), np.zeros(0))), Measures({"loss": np.zeros(1)})):
        assert size(value, known) == size(value) > 0


def test_rounds_are_told_as_they_are_done() -> None:
    reported: list[float] = []
    configs = [config(rounds=4), config(rounds=2), config(rounds=4, method="fedfb")]
    run_stacked(build_stacked(configs, federation()), progress=reported.append)
    steps = [step for step in reported if step]
    assert sum(steps) == pytest.approx(3)
    assert len(steps) >= 4  # rounds, not runs
    assert max(steps) == pytest.approx(1 / 4 + 1 / 2)  # fedfb shares no scores: its rounds are at other moments


def test_little_room_makes_chunks_and_changes_nothing() -> None:
    data = federation()
    configs = [config(rounds=2, seed=s) for s in range(5)]
    settings = build_stacked(configs, data)
    one = planned_numbers(settings[0])
    assert one >= 2 * sum(len(c.train) for c in data.clients)  # the order of two epochs alone
    assert [fitting(settings, room) for room in (0, one, 2 * one, 5 * one - 1, 5 * one)] == [1, 1, 2, 4, 5]
    order: list[int] = []
    parts = run_stacked(settings, report=lambda n, row: order.append(n), room=8 * 2 * one)
    assert order == [0, 1, 0, 1, 2, 3, 2, 3, 4, 4]  # two at a time
    whole = run_stacked(build_stacked(configs, data), room=8 * 100 * one)
    assert max(distance(a, b) for a, b in zip(whole, parts, strict=True)) <= 1e-12
