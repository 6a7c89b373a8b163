"""`privfair plan` before any data: what is declared, what is assumed, and how often a run fits into the budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from typer.testing import CliRunner

import privfair
from accountant import Budget, Ledger
from accountant.errors import InputError, Refused
from privfair.cli import app
from tests.cli.test_calibrate_and_train import RATES, calibrated

SIZES = {"north": 60, "south": 60, "west": 60}


def declared(folder: Path, privacy: dict[str, Any], *, clients: bool = True, schema: bool = True, **data: Any) -> Path:
    """A declared table, of two groups of the same size at each of three clients, all for training; not written yet."""
    branch = {"branch": {"values": list(SIZES), "unknown": "drop"}} if clients else {}
    known = {
        "numeric": {"score": [-4.0, 4.0]}, "positive": "1",
        "categories": {"sex": {"values": ["F", "M"], "unknown": "drop"}, **branch},
    }  # fmt: skip
    tree = {
        "data": {
            "name": "csv", "path": str(folder / "people.csv"), "label": "hired", "sensitive": "sex",
            "client": "branch", "test_fraction": 0.0, **({"schema": known} if schema else {}), **data,
        },
        "fairness": {"samples": 30},
        "federation": {"rounds": 2, "batch_size": 20},
        "privacy": privacy,
        "run": {"ledger": f"sqlite:///{folder}/ledger.sqlite"},
    }  # fmt: skip
    path = folder / "run.toml"
    path.write_text(tomli_w.dumps(tree))
    return path


def written(folder: Path) -> None:
    rng = np.random.default_rng(3)
    rows = [f"{b},{'FM'[n % 2]},{rng.normal():.3f},{rng.integers(2)}" for b, size in SIZES.items() for n in range(size)]
    (folder / "people.csv").write_text("\n".join(["branch,sex,score,hired", *rows]) + "\n")


def planned(config: Path, *arguments: str) -> dict[str, Any]:
    return calibrated(str(config), *arguments, command="plan")


@pytest.mark.parametrize("privacy", [{"epsilon": 4.0, **RATES}, {"epsilon": 6.0, "counts": "public"}])
def test_declared_sizes_that_are_right_give_the_plan_of_train(tmp_path: Path, privacy: dict[str, Any]) -> None:
    """Rows and notes that a run prints before its first release, to the last digit."""
    config = declared(tmp_path, {**privacy, "records": sum(SIZES.values())})
    written(tmp_path)
    plans: list[dict[str, Any]] = []
    run = privfair.train(config, planned=plans.append)
    found = planned(config)
    assert found["epsilon_by"] == run.privacy["epsilon_of_plan"]
    rows = found["plans"][0]["channels"]
    if "counts" in privacy:  # released counts have noise, and how many scores are shared may follow from them
        assert rows == plans[0]["channels"]
        assert found["plans"][0]["notes"] == plans[0]["notes"]
    assert [(r["channel"], r["noise"], r["epsilon"]) for r in rows] == [
        (r["channel"], r["noise"], r["epsilon"]) for r in plans[0]["channels"]
    ]


def test_a_declared_size_gives_one_plan_and_no_size_a_small_and_a_large_one(tmp_path: Path) -> None:
    config = declared(tmp_path, {"epsilon": 4.0})
    assumed = planned(config)
    assert [found["records"] for found in assumed["plans"]] == [900, 90_000]
    assert "no size is declared: 900 and 90,000 training records are ASSUMED" in assumed["notes"][0]
    assert assumed["epsilon"] == 4.0
    assert assumed["plan"] == "two phases"
    tested = ("--set", "data.test_fraction=0.25")  # with test records there is an evaluation
    sized = planned(config, "--set", "data.records=9000", *tested)
    assert [found["records"] for found in sized["plans"]] == [6750]
    assert sized["notes"] == [
        "Counts are ASSUMED: 6,750 training records of the declared 9,000, the same number in every client and group."
    ]
    assert planned(config, "--records", "6750", *tested)["channels"] == sized["channels"]
    tiny = ("privacy.epsilon=0.05", "privacy.target_method=rdp", "privacy.evaluation=none")
    small = planned(config, *(part for key in tiny for part in ("--set", key)))
    assert [found["records"] for found in small["plans"]] == [90_000]
    assert any("With 900 training records there is no such run: data must have a client" in n for n in small["notes"])


def test_clients_that_nobody_declared_are_assumed_or_given(tmp_path: Path) -> None:
    config = declared(tmp_path, {"epsilon": 4.0, **RATES}, clients=False)
    assert "How many clients there are is not declared: 10 are ASSUMED" in planned(config)["notes"][0]
    assert planned(config, "--clients", "3")["notes"] == []
    sums = declared(tmp_path, {"epsilon": 4.0}, clients=False)
    masked = ("--set", "fairness.tracker=embedding", "--clients")
    noise = [planned(sums, *masked, n)["plans"][0]["channels"][0]["noise"] for n in ("5", "50")]
    assert noise[0] != noise[1]  # it comes in shares of so many clients
    known = declared(tmp_path, {"epsilon": 4.0, **RATES})
    result = CliRunner().invoke(app, ["plan", str(known), "--clients", "4"])
    assert "--clients must be 3, as declared; found 4" in str(result.exception)


def test_masks_are_chosen_with_the_reason(tmp_path: Path) -> None:
    config = declared(tmp_path, {"epsilon": 4.0, "sampling_rate": 0.25})
    sums = ("--set", "fairness.tracker=embedding")

    def chosen(*options: str) -> dict[str, str]:
        (plan,) = planned(config, *sums, *options)["plans"]
        return {choice["key"]: choice["text"] for choice in plan["choices"]}

    on = chosen()
    assert on["aggregation.masks"].startswith("aggregation.masks = true, because")
    assert on["privacy.counts"].startswith('privacy.counts = "gaussian", because shares of Laplace noise')
    assert on["privacy.local_steps"].startswith("privacy.local_steps = 1, because of one step a round")
    off = chosen("--set", "privacy.counts=laplace")
    assert off["aggregation.masks"].startswith('aggregation.masks = false, because privacy.counts = "laplace" is asked')
    assert "privacy.local_steps" not in off
    (plan,) = planned(config, *sums, "--set", "privacy.local_steps=3")["plans"]
    assert any(
        "every client adds all of their noise itself (privacy.local_steps = 3)" in note for note in plan["notes"]
    )
    with pytest.raises(InputError, match=r"privacy.distributed_noise must come with masks"):
        CliRunner().invoke(
            app,
            ["plan", str(config), *sums, "--set", "aggregation.masks=false", "--set", "privacy.distributed_noise=true"],
            catch_exceptions=False,
        )


def test_a_table_without_a_schema_is_read_and_the_plan_says_so(tmp_path: Path) -> None:
    config = declared(tmp_path, {"epsilon": 4.0, **RATES}, schema=False)
    written(tmp_path)
    assert "it was read off the records, and for such a run no ε is claimed" in planned(config)["notes"][0]


def test_how_often_a_run_fits_is_how_often_it_can_be_run(tmp_path: Path) -> None:
    config = declared(tmp_path, {"epsilon": 2.0, "retries": 0, "dataset": "staff", **RATES})
    assert planned(config)["budget"]["budget"] is None
    assert not (tmp_path / "ledger.sqlite").exists()
    with Ledger(f"sqlite:///{tmp_path}/ledger.sqlite") as ledger:
        ledger.set_budget("staff", Budget(4.0, 1e-5))
    written(tmp_path)
    left = [planned(config)["budget"]["runs"]]
    while left[-1]:
        privfair.train(config)
        left.append(planned(config)["budget"]["runs"])
    assert left == list(range(left[0], -1, -1))
    assert left[0] >= 2
    with pytest.raises(Refused, match="staff"):
        privfair.train(config)
    text = CliRunner().invoke(app, ["plan", str(config)]).stdout
    assert "It does not fit into what is left of the budget of 'staff'" in " ".join(text.split())


def test_a_run_that_the_budget_does_not_allow_is_named(tmp_path: Path) -> None:
    config = declared(tmp_path, {"epsilon": 2.0, "dataset": "staff", **RATES})
    with Ledger(f"sqlite:///{tmp_path}/ledger.sqlite") as ledger:
        ledger.set_budget("staff", Budget(4.0, 1e-5))
    room = planned(config, "--set", "run.reproducible_noise=true")["budget"]
    assert room["runs"] == 0
    assert "run.reproducible_noise must be false" in room["refused"]


def test_a_run_without_privacy_has_no_plan(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["plan", str(declared(tmp_path, {}))])
    assert "privacy.epsilon must be given to plan a private run" in str(result.exception)
