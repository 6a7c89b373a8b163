"""Runs of a sweep are those of `privfair.train`, whatever dies on the way."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import privfair
from accountant import Budget, Ledger
from accountant.audit import audit
from accountant.errors import InputError, Refused
from privfair.config import Config
from privfair.sweeps import Grid, Job, run_many, run_sweep
from privfair.sweeps import sweep as stacks
from privfair.sweeps.journal import NOTIONS

TINY = ["data.records=24", "data.clients=3", "federation.rounds=2", "run.engine=local"]
BASE = Config.build({}, TINY)
EXACT = {"configuration": {"tiny": True}}


def grid(**changes: Any) -> list[Job]:
    known: dict[str, Any] = {"strengths": (0.0, 1.0), "seeds": 2, "methods": ("mmd_fedavg",), "epsilons": (math.inf,)}
    return Grid(**{**known, **changes}).jobs(BASE)


def test_rows_are_those_of_single_runs(tmp_path: Path) -> None:
    jobs = grid(methods=("mmd_fedavg", "local_fairness", "fedavg"), seeds=1, strengths=(1.0,))
    sweep = run_sweep(jobs, tmp_path, workers=1, **EXACT)
    assert len(sweep.done) == len(jobs) == 3
    for job, row in zip(sweep.jobs, sweep.rows, strict=True):
        alone = privfair.train(job.config)
        assert row["accuracy"] == alone.accuracy
        assert row["unfairness"] == alone.unfairness["statistical_parity"]
        assert {name: row[f"unfairness_{name}"] for name in NOTIONS} == {n: alone.unfairness[n] for n in NOTIONS}
        assert row["mmd2"] == alone.unfairness["mmd2"]
        assert (row["bytes_up"], row["bytes_down"]) == (alone.metrics["bytes"]["up"], alone.metrics["bytes"]["down"])
        assert row["epsilon_pld"] is None


def test_a_pool_gives_the_same_rows_and_survives_a_bad_run() -> None:
    bad = Config.build({}, [*TINY, "fairness.notion=nonsense"])
    configs = [grid()[0].config, bad, grid()[1].config]
    reported: list[float] = []
    pooled = dict(run_many(configs, "local", 2, reported.append))
    alone = dict(run_many(configs, "local", 1))
    assert sum(reported) == 3.0
    for row in (*pooled.values(), *alone.values()):
        row.pop("seconds", None)
    assert pooled == alone
    assert pooled[1]["status"] == "failed"
    assert "nonsense" in pooled[1]["reason"]


def test_a_private_run_tells_what_it_spent(tmp_path: Path) -> None:
    public = ["privacy.sampling_rate=0.5", "privacy.local_steps=1", "privacy.prediction_rate=0.2", "privacy.delta=1e-3"]
    cheap = ["data.clients=2", "data.records=60", "aggregation.scheme=plain", "privacy.target_method=rdp"]
    base = Config.build({}, [*TINY, *public, *cheap, f"run.ledger=sqlite:///{tmp_path / 'l.sqlite'}"])
    (job,) = Grid((1.0,), 1, ("mmd_fedavg",), (5.0,)).jobs(base)
    (row,) = run_sweep([job], tmp_path / "s", workers=1, **EXACT).rows
    assert row["status"] == "done", row["reason"]
    assert 0 < row["epsilon_pld"] <= row["epsilon_rdp"] <= 5.0
    assert row["epsilon_target"] == 5.0
    assert row["delta"] == 1e-3


def test_a_run_with_masks_tells_the_epsilon_beyond(tmp_path: Path) -> None:
    private = {"epsilon": 5.0, "sampling_rate": 1.0, "local_steps": 1}
    tables: dict[str, Any] = {
        "data": {"name": "synthetic", "clients": 4, "records": 60},
        "federation": {"rounds": 2},
        "fairness": {"tracker": "embedding"},
        "privacy": private,
        "aggregation": {"masks": True},
        "run": {"engine": "stacked", "reproducible_noise": True, "ledger": f"sqlite:///{tmp_path / 'a.sqlite'}"},
    }
    alone = privfair.train(Config.build(tables)).privacy
    assert alone is not None
    tables["run"] |= {"ledger": f"sqlite:///{tmp_path / 'b.sqlite'}"}
    ((_, row),) = run_many([Config.build(tables)], "stacked", 1)
    assert row["epsilon_beyond"] == pytest.approx(alone["collusion"]["epsilon_beyond"]["pld"])
    assert row["epsilon_beyond"] > row["epsilon_pld"] == pytest.approx(alone["epsilon"]["pld"])
    tables["aggregation"] = {"masks": False}
    ((_, row),) = run_many([Config.build(tables)], "stacked", 1)
    assert "epsilon_beyond" not in row


def test_what_is_there_is_not_run_again_and_the_grid_may_grow(tmp_path: Path) -> None:
    first = run_sweep(grid(seeds=1), tmp_path, workers=1, **EXACT)
    stamped = (tmp_path / "results.csv").read_bytes()
    again = run_sweep(grid(seeds=1), tmp_path, workers=1, **EXACT)
    assert (again.continued, again.rows) == (2, first.rows)
    assert (tmp_path / "results.csv").read_bytes() == stamped
    more = run_sweep(grid(seeds=2), tmp_path, workers=1, **EXACT)
    assert (more.continued, len(more.done)) == (2, 4)
    assert (tmp_path / "results.csv").read_bytes().startswith(stamped)


def test_the_whole_folder_has_the_runs_of_earlier_calls(tmp_path: Path) -> None:
    fails = grid(seeds=1, strengths=(1.0,), methods=("fairfed",), epsilons=(3.0,))
    first = run_sweep([*grid(), *fails], tmp_path, workers=1, **EXACT)
    assert (first.whole().rows, first.whole().counts()) == (first.rows, first.counts())
    more = run_sweep(grid(strengths=(1.0, 2.0), seeds=1), tmp_path, workers=1, **EXACT)
    assert [(row["value"], row["seed"]) for row in more.rows] == [(1.0, 0), (2.0, 0)]  # as asked for
    assert (more.counts()["all"], more.counts()["done"], more.continued) == (2, 2, 1)
    whole = more.whole()
    assert [(row["value"], row["seed"]) for row in whole.rows] == [(1.0, 0), (2.0, 0), (0.0, 0), (0.0, 1), (1.0, 1)]
    assert whole.counts() == {**whole.counts(), "all": 6, "done": 5, "failed": 0, "continued": 4}
    assert whole.counts()["seconds"] == sum(row["seconds"] for row in whole.rows)
    again = run_sweep(fails, tmp_path, workers=1, **EXACT).whole()
    assert again.counts() == {**again.counts(), "all": 6, "done": 5, "failed": 1, "continued": 5}


def test_failed_runs_are_recorded_and_tried_again(tmp_path: Path) -> None:
    jobs = [*grid(seeds=1), *grid(seeds=1, strengths=(1.0,), methods=("fairfed",), epsilons=(3.0,))]
    sweep = run_sweep(jobs, tmp_path, workers=1, **EXACT)
    (failed,) = sweep.failed
    assert failed["reason"].startswith("federation.method must send nothing without noise, and fairfed sends local")
    assert len(sweep.done) == 2
    tried: list[str] = []
    run_sweep(jobs, tmp_path, workers=1, finished=lambda job, row: tried.append(job.series), **EXACT)
    assert tried == ["fairfed"]


def test_wrong_input_leaves_no_trace(tmp_path: Path) -> None:
    base = Config.build({}, ["data.name=sinthetic"])
    jobs = Grid((1.0,), 1, ("mmd_fedavg",), (math.inf,)).jobs(base)
    with pytest.raises(InputError, match="dataset must be in the registry; found 'sinthetic'"):
        run_sweep(jobs, tmp_path / "s", **EXACT)
    assert not (tmp_path / "s").exists()


def test_the_stacked_engine_is_the_default_of_a_sweep() -> None:
    (job,) = Grid((1.0,), 1, ("mmd_fedavg",), (math.inf,)).jobs(Config.build({}, ["data.records=24"]))
    assert job.config.run.engine == "stacked"
    assert grid()[0].config.run.engine == "local"  # as asked for


def test_stacks_take_about_a_minute() -> None:
    assert stacks.next_stack(32, 1.0) == 64  # at most twice as many
    assert stacks.next_stack(32, 120.0) == 16
    assert stacks.next_stack(8, 1e5) == stacks.LEAST_STACK
    assert stacks.next_stack(256, 0.0) == stacks.LARGEST_STACK


def test_stacks_follow_each_other_and_rounds_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "FIRST_STACK", 2)
    bad = Config.build({}, [*TINY, "fairness.notion=nonsense"])
    configs = [Config.build({}, [*TINY, f"run.seed={s}"]) for s in range(4)]
    reported: list[float] = []
    rows = dict(run_many([*configs[:3], bad, configs[3]], "stacked", 1, reported.append))
    assert sorted(rows) == [0, 1, 2, 3, 4]
    assert [row["status"] for _, row in sorted(rows.items())] == ["done", "done", "done", "failed", "done"]
    assert sum(reported) == pytest.approx(5)
    assert len(reported) >= 5  # two rounds of each of two stacks, and the run that failed
    alone = dict(run_many(configs, "stacked", 1))
    assert rows[4]["accuracy"] == pytest.approx(alone[3]["accuracy"], abs=1e-6)


def test_a_long_sweep_goes_on_in_processes_and_gives_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    configs = [Config.build({}, [*TINY, "run.dtype=float64", f"run.seed={s}"]) for s in range(20)]
    here = dict(run_many(configs, "stacked", 1))
    monkeypatch.setattr(stacks, "FIRST_STACK", 2)
    monkeypatch.setattr(stacks, "PROCESSES_PAY", 0.0)
    reported: list[float] = []
    there = dict(run_many(configs, "stacked", 2, reported.append))
    assert sorted(there) == sorted(here) == list(range(20))
    assert sum(reported) == pytest.approx(20)
    for number, row in there.items():
        for name in ("accuracy", "unfairness", "train_objective", "bytes_up", "engine"):
            expected = here[number][name]
            assert row[name] == (pytest.approx(expected, abs=1e-9) if isinstance(expected, float) else expected)


def test_the_last_stacks_are_shared_by_all_workers() -> None:
    cut = stacks.Stacks([BASE] * 100, 2)
    assert len(next(cut)) == stacks.FIRST_STACK
    cut.took(16, 1.6)
    assert cut.seconds_left == pytest.approx(8.4)
    # twice as many at first, then what is left for each of two
    assert [len(stack) for stack in cut] == [32, 26, 13, 8, 5]


PRIVATE = [
    "privacy.sampling_rate=0.5", "privacy.local_steps=1", "privacy.prediction_rate=0.2", "privacy.delta=1e-3",
    "privacy.target_method=rdp", "data.clients=2", "data.records=60", "aggregation.scheme=plain",
]  # fmt: skip


def test_a_private_stack_is_in_the_ledger_and_gives_what_each_run_gives(tmp_path: Path) -> None:
    ledger = f"run.ledger=sqlite:///{tmp_path / 'l.sqlite'}"
    base = Config.build({}, [*TINY, *PRIVATE, ledger, "run.reproducible_noise=true", "run.dtype=float64"])
    jobs = Grid((0.0, 1.0), 2, ("mmd_fedavg",), (5.0, math.inf)).jobs(base)
    configs = [job.config for job in jobs]
    stacked, alone = dict(run_many(configs, "stacked", 1)), dict(run_many(configs, "local", 1))
    assert {row["status"] for row in stacked.values()} == {"done"}
    for number, job in enumerate(jobs):
        for name in ("accuracy", "unfairness", "epsilon_pld", "epsilon_rdp", "delta"):
            assert stacked[number].get(name) == pytest.approx(alone[number].get(name), abs=1e-6), (job.key, name)
        assert ("epsilon_pld" in stacked[number]) == math.isfinite(job.epsilon)
    with Ledger(ledger.partition("=")[2]) as opened:
        runs = opened.runs("synthetic")
        assert len(runs) == 8  # four private runs by each engine
        spent = sorted(len(opened.spends(run=run)) for run in runs)
        assert len(set(spent)) == 1  # both engines write the same rows
        assert audit(opened, pld=False).fine
        with opened.reading() as connection:
            left = connection.exec_driver_sql("SELECT count(*) FROM messages").scalar()
    assert left == 0


def test_an_engine_that_is_not_there() -> None:
    with pytest.raises(InputError, match="engine must be local or stacked for a sweep; found 'abacus'"):
        run_many([], "abacus", 1)


@pytest.mark.parametrize("epsilon", [3.0, math.inf])
def test_data_with_a_budget_are_not_swept(tmp_path: Path, epsilon: float) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    with Ledger(url) as ledger:
        ledger.set_budget("synthetic", Budget(epsilon=2.0, delta=1e-5), reason="test")
    jobs = Grid((1.0, 2.0), 1, ("mmd_fedavg",), (epsilon,)).jobs(Config.build({}, [*TINY, f"run.ledger={url}"]))
    with pytest.raises(Refused) as error:
        run_sweep(jobs, tmp_path / "s", **EXACT)
    text = str(error.value)
    assert text.startswith("Dataset 'synthetic' has a lifetime budget of ε = 2, δ = 1e-05 in sqlite:///")
    assert "a sweep of 2 runs looks at the figures of every run" in text
    assert "`privfair train` once on these." in text
    assert not (tmp_path / "s").exists()


LONGER = {
    "local": [*TINY, "federation.local_epochs=20"],
    "stacked": [*TINY, "run.engine=stacked", "federation.rounds=60", "run.dtype=float64"],
}
SCRIPT = """
import math, sys
from pathlib import Path
from privfair.config import Config
from privfair.sweeps import Grid, run_sweep, sweep
if __name__ == "__main__":
    sweep.FIRST_STACK = 4
    jobs = Grid((0.0, 0.5, 1.0, 2.0), 3, ("mmd_fedavg",), (math.inf,)).jobs(Config.build({{}}, {longer}))
    run_sweep(jobs, Path(sys.argv[1]), configuration={{"tiny": True}}, workers=2)
"""


@pytest.mark.parametrize("engine", LONGER)
def test_a_sweep_that_is_killed_goes_on_where_it_was(tmp_path: Path, engine: str) -> None:
    script, out = tmp_path / "sweep.py", tmp_path / "killed"
    longer = LONGER[engine]
    script.write_text(SCRIPT.format(longer=longer))
    results = out / "results.csv"
    process = subprocess.Popen([sys.executable, str(script), str(out)], start_new_session=True)
    limit = time.monotonic() + 60
    while time.monotonic() < limit and (not results.exists() or results.read_bytes().count(b"\n") < 4):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    there = results.read_bytes().count(b"\n") - 1
    assert 3 <= there < 12
    _wait_for_the_end_of(process.pid)  # it led its own group
    with results.open("ab") as file:  # and the power went while a line was being written
        file.write(b"1,mmd_fedavg,mmd_fed")
    jobs = Grid((0.0, 0.5, 1.0, 2.0), 3, ("mmd_fedavg",), (math.inf,)).jobs(Config.build({}, longer))
    continued = run_sweep(jobs, out, workers=1, **EXACT)
    whole = run_sweep(jobs, tmp_path / "whole", workers=1, **EXACT)
    assert continued.continued == there
    for row, other in zip(continued.rows, whole.rows, strict=True):
        for name, value in _figures(row).items():  # runs of another stack may be rounded differently
            assert value == (pytest.approx(other[name], abs=1e-6) if isinstance(value, float) else other[name])
    assert results.read_bytes().count(b"\n") == 13


def _figures(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "seconds"}


def _wait_for_the_end_of(group: int) -> None:
    """Workers end with the sweep that started them."""
    limit = time.monotonic() + 20
    while time.monotonic() < limit:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("processes of the killed sweep are still there")


def test_the_stacked_engine_gives_the_same_rows_but_for_rounding() -> None:
    bad = Config.build({}, [*TINY, "fairness.notion=nonsense"])
    wide = Config.build({}, [*TINY, "run.dtype=float64", "federation.method=fairfed"])
    configs = [Config.build({}, [*TINY, "run.dtype=float64"]), bad, wide]
    stacked, alone = dict(run_many(configs, "stacked", 1)), dict(run_many(configs, "local", 1))
    assert stacked[1] == alone[1]
    for number in (0, 2):
        assert stacked[number]["engine"] == "stacked"
        for name in ("accuracy", "unfairness", "mmd2", "train_objective", "bytes_up"):
            # 1e-4 for tracked fairness: a record's own score among the shared ones is a tie that rounding decides
            limit = 1e-9 if number == 2 else 1e-4
            assert stacked[number][name] == pytest.approx(alone[number][name], abs=limit)


@pytest.mark.parametrize("engine", ["local", "stacked"])
def test_when_it_is_late_no_more_runs_are_begun(engine: str) -> None:
    asked: list[int] = []

    def late() -> bool:
        asked.append(1)
        return len(asked) > 1

    configs = [job.config for job in grid(seeds=stacks.FIRST_STACK)][: stacks.FIRST_STACK + 3]
    rows = dict(run_many(configs, engine, 1, None, late))
    assert sorted(rows) == list(range(1 if engine == "local" else stacks.FIRST_STACK))
    assert all(row["status"] == "done" for row in rows.values())
