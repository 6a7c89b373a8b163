"""Whole private and encrypted runs: their files, their price, their limits without noise, budgets, resume."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privfair
from accountant.budget import Budget, BudgetExceeded
from accountant.errors import InputError
from accountant.ledger.ledger import Ledger
from privfair.channels.base import respond
from privfair.clients.client import Client
from privfair.engines import local
from tests.end_to_end.federations import toy

# Laplace noise on counts is named: these are runs without masks, in which every client adds all of its noise
NOISE = {"counts": "laplace", "count_noise": 2.0, "prediction_noise": 1.0, "noise_multiplier": 2.0}
RATES = {"counts": "laplace", "sampling_rate": 0.5, "prediction_rate": 0.5}
GIVEN = {**NOISE, **RATES}
QUICK = {"rounds": 2, "local_epochs": 1, "batch_size": 30}
COMMAND = str(Path(sys.executable).parent / "privfair")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/ledger.sqlite"


def parameters(result: privfair.Result) -> np.ndarray:
    return np.concatenate([p.detach().numpy().ravel() for p in result.model.module.parameters()])


def spends(url: str, run: str) -> list[Any]:
    with Ledger(url, create=False) as ledger:
        return [spend for _, spend in ledger.spends(run=run)]


def with_set(settings: list[str]) -> list[str]:
    return [part for simulation in settings for part in ("--set", simulation)]


def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a command line, in this process."""
    from privfair.cli import main

    monkeypatch.setattr(sys, "argv", ["privfair", *arguments])
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out, printed.err


class Stop(Exception):
    """Raised in the middle of a run."""


def stop_after(rounds: int) -> Callable[[dict[str, Any]], None]:
    def report(row: dict[str, Any]) -> None:
        if row["round"] == rounds:
            raise Stop

    return report


# ---- what a run writes and what it costs


def test_a_private_encrypted_run_and_its_books(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """ε = 3 for the whole run: files, rows, and an audit of the ledger that comes to the same ε."""
    out, plans = tmp_path / "run", []
    result = privfair.train(
        dataset=toy(records=400), privacy={"epsilon": 3.0, **RATES}, federation=QUICK, run={"ledger": url}, out=out,
        planned=plans.append,
    )  # fmt: skip
    privacy = json.loads((out / "privacy.json").read_text())
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["privacy"] == privacy == result.privacy
    assert {"accuracy", "unfairness", "privacy", "bytes", "seconds", "out"} <= set(metrics)
    assert metrics["unfairness"].keys() >= {"statistical_parity", "mmd2"}
    assert privacy.keys() >= {"epsilon", "delta", "adjacency", "by_client", "by_group", "by_channel"}
    assert metrics["aggregation"]["scheme"] == "bfv"
    assert privacy["private"]
    assert 0 < privacy["epsilon"]["pld"] <= 3.0
    # rows: counts once, and each round every cell's scores and one update, for every client
    rows = Counter((s.client, s.channel) for s in spends(url, privacy["ledger"]["run"]))
    rounds, cells = 2, 2
    assert rows == {
        (f"client{k}", channel): n
        for k in range(3)
        for channel, n in (("counts", 1), ("predictions", rounds * cells), ("updates", rounds), ("evaluation", 1))
    }
    assert privacy["ledger"]["rows"] == rows.total()
    code, audited, errors = command(
        monkeypatch, capsys, "audit", "--ledger", url, "--head", str(out / "privacy.json"), "--json"
    )
    assert code == 0, errors
    report = json.loads(audited)
    assert report["chain"]["verified"]
    assert report["head"] == privacy["ledger"]["head"]
    found = report["datasets"]["toy"]
    assert found["epsilon"]["rdp"] == pytest.approx(privacy["epsilon"]["rdp"], rel=1e-9)
    assert found["epsilon"]["pld"] == pytest.approx(privacy["epsilon"]["pld"], rel=1e-6)
    for channel, epsilon in privacy["by_channel"].items():
        assert found["by_channel"][channel]["epsilon"]["rdp"] == pytest.approx(epsilon["rdp"], rel=1e-9)
    # the plan said so before: every channel with its price, and the sum
    (plan,) = plans
    assert [row["channel"] for row in plan["channels"]] == ["counts", "predictions", "updates", "evaluation"]
    assert any("Together ε" in note for note in plan["notes"])
    assert any("Expected fairness error" in note for note in plan["notes"])
    x = toy(records=400).clients[0].test.features
    np.testing.assert_allclose(privfair.load(out).scores(x), result.model.scores(x), atol=1e-7)


def test_epsilon_grows_with_rounds_and_retries_not_used_are_not_charged(url: str) -> None:
    """The statement counts what was released; two rounds cost more than one, by the accountant's own sum."""
    from accountant import Composed, DiscreteGaussian, DiscreteLaplace, Gaussian, PoissonSampled, Repeated, epsilon

    found = []
    for rounds in (1, 2):
        result = privfair.train(
            dataset=toy(records=200), privacy=GIVEN, federation={**QUICK, "rounds": rounds}, run={"ledger": url},
            aggregation={"scheme": "plain"},
        )  # fmt: skip
        found.append(result.privacy["epsilon"]["rdp"])
        scores = PoissonSampled(0.5, DiscreteGaussian(256.0, 256, step=1 / 256))
        steps = Repeated(PoissonSampled(0.5, Gaussian(2.0)), 2 * rounds)
        events = Composed((DiscreteLaplace(2.0, 1), Repeated(scores, rounds), steps))
        assert found[-1] == pytest.approx(epsilon(events, 1e-5, "rdp"), rel=1e-9)
    assert found[0] < found[1]


@pytest.mark.parametrize(
    ("shape", "sections", "rows"),
    [
        ({}, {"federation": {**QUICK, "local_optimizer": "adam"}}, 1 + 2 * (2 + 1)),
        ({}, {"fairness": {"notion": "equalized_odds"}}, 1 + 2 * (4 + 1)),
        ({"attributes": 2}, {}, 1 + 2 * (4 + 1)),
        ({}, {"fairness": {"notion": "conditional_statistical_parity"}}, 1 + 2 * (2 + 1)),
        ({}, {"privacy": {**GIVEN, "predictions": "laplace"}}, 1 + 2 * (2 + 1)),
        ({}, {"privacy": {**GIVEN, "prediction_noise": 0.3, "kernel_correction": "deconvolve"},
              "fairness": {"kernel": "gaussian:0.8"}}, 1 + 2 * (2 + 1)),
        ({}, {"federation": {**QUICK, "method": "fedavg"}}, 1 + 2),
        ({}, {"federation": {**QUICK, "optimizer": "fedadam"}}, 1 + 2 * (2 + 1)),
        ({"task": "regression"}, {}, 1 + 2 * (2 + 1)),
        ({"groups": 3}, {"model": {"name": "mlp"}}, 1 + 2 * (3 + 1)),
    ],
)  # fmt: skip
def test_kinds_of_private_runs(url: str, shape: dict[str, Any], sections: dict[str, Any], rows: int) -> None:
    result = privfair.train(
        {"privacy": GIVEN, "federation": QUICK, **sections}, dataset=toy(records=400, **shape), run={"ledger": url}
    )
    made = Counter(s.client for s in spends(url, result.privacy["ledger"]["run"]))
    assert made == dict.fromkeys(("client0", "client1", "client2"), rows)
    assert result.privacy["epsilon"]["rdp"] >= result.privacy["epsilon"]["pld"] * 0.99
    assert np.isfinite(parameters(result)).all()
    if "kernel_correction" in sections.get("privacy", {}):
        assert "deconvolved, so this is the objective itself" in result.privacy["objective"]
    elif sections.get("federation", {}).get("method") != "fedavg":
        assert "(Proposition 5.2)" in result.privacy["objective"]


def test_an_unbounded_channel_is_named(url: str) -> None:
    privacy = {**RATES, "count_noise": 2.0, "noise_multiplier": 2.0, "predictions": "none"}
    reported = privfair.train(dataset=toy(), privacy=privacy, federation=QUICK, run={"ledger": url}).privacy
    assert reported["epsilon"] == {"rdp": None, "pld": None}
    assert reported["unbounded"] == ["predictions"]
    assert not reported["private"]
    assert reported["claim"] == "No ε: predictions left the clients without noise."
    assert reported["by_channel"]["updates"]["rdp"] > 0


def test_public_counts_are_stated(url: str) -> None:
    privacy = {k: v for k, v in GIVEN.items() if k != "count_noise"} | {"counts": "public"}
    reported = privfair.train(dataset=toy(records=80), privacy=privacy, federation=QUICK, run={"ledger": url}).privacy
    assert reported["adjacency"] == "replace-one"
    assert "counts are public" in reported["neighbours"]
    assert any("declared public" in line for line in reported["not_covered"])
    assert reported["change_of_group"] == {}


def test_the_command_line_prints_one_object_only(tmp_path: Path, url: str) -> None:
    settings = ["data.clients=3", "data.records=120", "federation.rounds=1", f"run.ledger='{url}'"]
    settings += [f"privacy.{key}={value}" for key, value in GIVEN.items()]
    ran = subprocess.run(
        [COMMAND, "train", *with_set(settings), "--out", "run", "--json"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    metrics = json.loads(ran.stdout)  # fails if anything else is on stdout
    assert ran.stdout.count("\n") == 1
    assert metrics["privacy"]["epsilon"]["pld"] > 0
    assert metrics["privacy"]["delta"] == 1e-5
    assert metrics["bytes"]["up"] > 0


# ---- seeds, budgets, resume


def test_seeded_noise_repeats_and_claims_nothing(url: str) -> None:
    def train(seeded: bool) -> privfair.Result:
        run = {"ledger": url, "reproducible_noise": seeded}
        privacy = {**GIVEN, "dataset": f"toy {seeded}"}
        return privfair.train(dataset=toy(), privacy=privacy, federation=QUICK, run=run)

    one, two = train(True), train(True)
    np.testing.assert_array_equal(parameters(one), parameters(two))
    assert one.privacy["claim"].startswith("No ε towards anyone who knows the seed")
    assert any("Seeded noise" in line for line in one.privacy["not_covered"])
    three, four = train(False), train(False)
    assert not np.array_equal(parameters(three), parameters(four))
    assert not any("Seeded noise" in line for line in three.privacy["not_covered"])


def test_seeded_noise_is_refused_where_there_is_a_budget(url: str) -> None:
    with Ledger(url) as ledger:
        ledger.set_budget("toy", Budget(100.0, 1e-6))
    message = r"run.reproducible_noise must be false for 'toy', which has a budget; found True\. Whoever knows the seed"
    with pytest.raises(InputError, match=message):
        privfair.train(dataset=toy(), privacy=GIVEN, federation=QUICK, run={"ledger": url, "reproducible_noise": True})


def test_a_budget_holds_over_several_runs(tmp_path: Path, url: str) -> None:
    """The first run fits, the second stops in its middle; what the first one left is intact."""
    with Ledger(url) as ledger:
        budget = ledger.set_budget("toy", Budget(20.0, 1e-6))
    data = toy(records=400)
    arguments: dict[str, Any] = {"privacy": GIVEN, "federation": QUICK, "run": {"ledger": url}}
    privfair.train(**arguments, dataset=data, out=tmp_path / "one")
    kept = {p.name: p.read_bytes() for p in (tmp_path / "one").iterdir() if p.is_file()}

    def more() -> None:
        for number in range(8):
            privfair.train(**arguments, dataset=data, out=tmp_path / f"more{number}")

    with pytest.raises(BudgetExceeded, match=r"Dataset 'toy': the budget .* does not allow this\. Left .*(fit|none)"):
        more()
    assert {p.name: p.read_bytes() for p in (tmp_path / "one").iterdir() if p.is_file()} == kept
    with Ledger(url) as ledger:
        assert max(ledger.spent("toy").values()) <= budget.capacity
    assert privfair.load(tmp_path / "one").predict(data.clients[0].test.features).size == 100


def test_over_budget_is_exit_code_1(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Ledger(url) as ledger:
        ledger.set_budget("synthetic", Budget(0.5, 1e-6))
    settings = ["data.clients=2", "data.records=100", "federation.rounds=1", f"run.ledger='{url}'"]
    settings += [f"privacy.{key}={value}" for key, value in GIVEN.items()]
    reported = command(monkeypatch, capsys, "train", *with_set(settings), "--out", str(tmp_path / "run"), "--json")
    assert reported[0] == 1
    assert "the budget (ε = 0.5" in " ".join(reported[2].split())
    assert "Traceback" not in reported[2]
    assert reported[1] == ""


def keys_of(tree: Any) -> set[str]:
    if isinstance(tree, dict):
        return set(tree).union(*(keys_of(v) for v in tree.values()))
    return set().union(*(keys_of(v) for v in tree)) if isinstance(tree, list) else set()


@pytest.mark.parametrize("evaluation", ["none", "laplace"])
def test_data_with_a_budget_show_no_exact_figure(tmp_path: Path, url: str, evaluation: str) -> None:
    with Ledger(url) as ledger:
        ledger.set_budget("toy", Budget(100.0, 1e-6))
    out = tmp_path / "run"
    noise = {"evaluation": evaluation, "evaluation_noise": 3.0} if evaluation != "none" else {}
    result = privfair.train(
        dataset=toy(records=400), privacy={**GIVEN, **noise}, federation=QUICK, run={"ledger": url}, out=out
    )
    assert (out / "history.csv").read_text().splitlines() == ["round", "0", "1", "2"]
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["figures"] == "released"
    assert metrics["objective"] == {}
    assert bool(metrics["confidence_intervals"]) == (evaluation != "none")  # of the released counts' noise
    assert metrics["data"]["clients"].keys() == {"client0", "client1", "client2"}
    assert all(set(c) == {"released"} for c in metrics["data"]["clients"].values())
    assert not keys_of(metrics) & {"train", "test", "train_mmd2", "test_mmd2", "train_objective", "mean_score"}
    from privfair.runs.folder import RunDirectory

    checkpoint = RunDirectory.open(out).read_checkpoint()
    assert checkpoint is not None
    assert [set(row) for row in checkpoint.history] == [{"round"}] * 3
    if evaluation == "none":
        assert result.accuracy is None
        assert result.unfairness == {}
        return
    assert result.accuracy is not None
    assert 0 <= result.accuracy <= 1
    assert result.unfairness["statistical_parity"] is not None
    # noisy, and about right: 300 test records, 24 noisy counts of standard deviation 3√2 in the sum of 3 clients
    data = toy(records=400).pooled_test()
    exact = float(np.mean(result.model.predict(data.features) == data.labels))
    assert abs(result.accuracy - exact) <= 6 * (8 * 3) ** 0.5 * 3 * 2**0.5 / len(data)
    assert result.privacy["by_channel"]["evaluation"]["rdp"] > 0


def test_an_inferred_schema_is_refused_where_there_is_a_budget(tmp_path: Path, url: str) -> None:
    from dataclasses import replace

    with Ledger(url) as ledger:
        ledger.set_budget("toy", Budget(100.0, 1e-6))
    data = toy()
    inferred = replace(data, schema=replace(data.schema, inferred=True))
    with pytest.raises(InputError, match=r"data must have a declared schema for 'toy', which has a budget"):
        privfair.train(dataset=inferred, privacy=GIVEN, federation=QUICK, run={"ledger": url})


def test_an_inferred_schema_makes_no_claim(url: str) -> None:
    from dataclasses import replace

    data = toy(records=80)
    inferred = replace(data, schema=replace(data.schema, inferred=True))
    reported = privfair.train(dataset=inferred, privacy=GIVEN, federation=QUICK, run={"ledger": url}).privacy
    assert not reported["private"]
    assert "read off the records" in reported["claim"]
    assert any(line.startswith("The schema") for line in reported["not_covered"])


@pytest.mark.parametrize("scheme", ["bfv", "plain"])
def test_resume_costs_nothing_more_and_repeats_nothing(tmp_path: Path, url: str, scheme: str) -> None:
    """Stopped in round 2 of 4, after its messages were made and before its checkpoint: they are sent again."""
    arguments: dict[str, Any] = {
        "dataset": toy(records=200), "privacy": GIVEN, "federation": {**QUICK, "rounds": 4},
        "aggregation": {"scheme": scheme}, "run": {"ledger": url, "reproducible_noise": True},
    }  # fmt: skip
    whole = privfair.train(**arguments, out=tmp_path / "whole")
    with pytest.raises(Stop):
        privfair.train(**arguments, out=tmp_path / "cut", report=stop_after(2))
    run = json.loads((tmp_path / "cut" / "run.json").read_text())["run"]
    before = spends(url, run)
    assert Counter(s.round for s in before) == {None: 3, 0: 9, 1: 9}
    with Ledger(url) as ledger:
        messages = {t: ledger.message(t) for t, s in ledger.spends(run=run) if s.round == 1}
    assert all(messages.values())
    resumed = privfair.train(resume=tmp_path / "cut", dataset=toy(records=200))
    np.testing.assert_array_equal(parameters(resumed), parameters(whole))
    for name in ("model.safetensors", "history.csv"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert len(spends(url, run)) == 3 + 4 * 9 == len(spends(url, whole.privacy["ledger"]["run"]))
    assert resumed.privacy["epsilon"] == whole.privacy["epsilon"]


def test_resume_without_seeds_uses_the_stored_messages(tmp_path: Path, url: str) -> None:
    """Nobody can draw the same noise again: a resumed round must be made of the bytes that were stored."""
    arguments: dict[str, Any] = {"privacy": GIVEN, "federation": {**QUICK, "rounds": 3}, "run": {"ledger": url}}
    with pytest.raises(Stop):
        privfair.train(**arguments, dataset=toy(), out=tmp_path / "cut", report=stop_after(1))
    asked: list[Any] = []

    def noting(client: Client, request: Any) -> Any:
        asked.append((client.index, getattr(request, "round", None)))
        return respond(client, request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "respond", noting)
        result = privfair.train(resume=tmp_path / "cut", dataset=toy())
    assert {number for _, number in asked} == {1, 2}  # round 0 was answered before
    assert len(spends(url, result.privacy["ledger"]["run"])) == result.privacy["ledger"]["rows"]


def test_a_finished_run_resumed_releases_nothing_more(tmp_path: Path, url: str) -> None:
    privacy = {**GIVEN, "evaluation": "gaussian", "evaluation_noise": 3.0}
    first = privfair.train(dataset=toy(), privacy=privacy, federation=QUICK, run={"ledger": url}, out=tmp_path / "run")
    again = privfair.train(resume=tmp_path / "run", dataset=toy())
    assert again.privacy["ledger"]["rows"] == first.privacy["ledger"]["rows"]
    assert again.privacy["epsilon"] == first.privacy["epsilon"]
    assert again.metrics["released"] == first.metrics["released"]
    np.testing.assert_array_equal(parameters(again), parameters(first))
