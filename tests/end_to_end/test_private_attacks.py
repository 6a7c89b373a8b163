"""Ways around the account that an attacker found once: each is closed, and stays closed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import privfair
from accountant.budget import Budget, BudgetExceeded
from accountant.errors import InputError, Refused
from accountant.ledger.ledger import Ledger
from accountant.ledger.signing import OwnerKey, fingerprint_csv
from accountant.spending import worst_record
from privfair.channels import updates
from privfair.config import Config
from privfair.datasets import load
from privfair.datasets.records import Federation, Records
from privfair.fairness.notions import EQUALIZED_ODDS, Cells, ConditioningSet, Notion
from privfair.models import torch_seeded
from privfair.privacy.run_ledger import cell_labels
from privfair.runs.assembly import build
from privfair.runs.folder import RunDirectory
from tests.end_to_end.federations import toy
from tests.end_to_end.test_private_training import GIVEN, QUICK, Stop, spends, stop_after


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/ledger.sqlite"


def drops(features: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1))


def test_masks_of_dropout_are_secret(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With masks from the public seed one record more would shift those of all others: the sum is not bounded by C."""
    seeds: list[int] = []

    @contextmanager
    def noted(seed: int, *labels: str | int) -> Iterator[None]:
        seeds.append(seed)
        with torch_seeded(seed, *labels):
            yield

    monkeypatch.setattr(updates, "torch_seeded", noted)
    sections: dict[str, Any] = {"privacy": GIVEN, "federation": {**QUICK, "rounds": 1}, "run": {"ledger": url}}
    for _ in range(2):
        privfair.train(**sections, model={"name": f"{__name__}:drops"}, dataset=toy(records=100))
    assert len(set(seeds)) == len(seeds) == 2 * 3  # three clients, each with a seed of its own in each run
    assert min(seeds) > 2**64  # not to be tried out


def people(path: Path) -> dict[str, Any]:
    """The [data] section of a table of 400 people, written to the path, with its schema."""
    rng = np.random.default_rng(0)
    rows = ["x,y,sex,site,city"]
    for _ in range(400):
        x, sex = rng.random(), "fm"[rng.integers(2)]
        rows.append(f"{x:.3f},{int(x > 0.5)},{sex},{'abc'[rng.integers(3)]},{'uvw'[rng.integers(3)]}")
    path.write_text("\n".join(rows) + "\n")
    groups = {"values": ["f", "m"], "unknown": "drop"}
    schema = {"task": "binary", "positive": "1", "numeric": {"x": [0.0, 1.0]}, "categories": {"sex": groups}}
    return {"name": "csv", "path": str(path), "label": "y", "sensitive": "sex", "schema": schema, "features": ["x"]}


def test_a_budget_holds_for_one_division_of_the_records(tmp_path: Path, url: str) -> None:
    """Clients by another column would be new payers for the same people."""
    data = people(tmp_path / "people.csv")
    with Ledger(url) as ledger:
        ledger.set_budget("people", Budget(50.0, 1e-6))
    sections: dict[str, Any] = {"privacy": {"epsilon": 2.0}, "federation": QUICK, "run": {"ledger": url}}
    privfair.train(**sections, data={**data, "client": "site"})
    before = url_rows(url)
    with pytest.raises(Refused, match="divided its records among clients or groups differently"):
        privfair.train(**sections, data={**data, "client": "city"})
    assert url_rows(url) == before
    privfair.train(**sections, data={**data, "client": "site"}, fairness={"notion": "equalized_odds"})  # same division


def test_a_budget_holds_for_one_division_of_records_that_are_given(url: str) -> None:
    """The same records under other clients' names, from Python: no option tells of it."""
    given = toy(records=100)
    with Ledger(url) as ledger:
        ledger.set_budget(given.name, Budget(50.0, 1e-6))
    sections: dict[str, Any] = {"privacy": {"epsilon": 2.0}, "federation": QUICK, "run": {"ledger": url}}
    privfair.train(**sections, dataset=given)
    clients = tuple(replace(client, name=f"city {client.name}") for client in given.clients)
    with pytest.raises(Refused, match="divided its records among clients or groups differently"):
        privfair.train(**sections, dataset=replace(given, clients=clients))


def test_sets_of_another_label_add_up(tmp_path: Path) -> None:
    """Who is in "label 1" of one label may be in "label 0" of another, and has paid for both."""
    data = people(tmp_path / "people.csv")
    other = {**data, "schema": {**data["schema"], "positive": "0"}}
    schemas = [load("csv", **{k: v for k, v in d.items() if k != "name"}).schema for d in (data, other)]
    schemas.append(replace(schemas[0], label="z"))
    spent = {("a", label): 1.0 for schema in schemas for label in cell_labels(Cells.of(EQUALIZED_ODDS, schema), schema)}
    assert len(spent) == 3 * 4
    assert worst_record(spent)[0] == pytest.approx(3.0)  # one cell of each of the three labels


def test_data_with_a_fingerprint_have_one_name(tmp_path: Path, url: str) -> None:
    """Another name would be another budget, or none."""
    data = people(tmp_path / "people.csv")
    key = OwnerKey.create(tmp_path / "owner.key")
    with Ledger(url, key=key) as ledger:
        ledger.register("people", fingerprint=fingerprint_csv(tmp_path / "people.csv", key))
        ledger.set_budget("people", Budget(3.0, 1e-6))
    run = {"ledger": url, "key": str(tmp_path / "owner.key")}
    with pytest.raises(Refused, match="These data are in the ledger as 'people'"):
        privfair.train(
            privacy={"epsilon": 50.0, "dataset": "q"}, federation=QUICK, run=run, data={**data, "client": "site"}
        )


def test_notes_with_exact_numbers_stay_out_of_the_files_of_budgeted_data(tmp_path: Path, url: str) -> None:
    with Ledger(url) as ledger:
        ledger.set_budget("toy", Budget(100.0, 1e-6))
    data = replace(toy(records=80), notes=("137 records dropped",))
    reported = privfair.train(privacy=GIVEN, federation=QUICK, run={"ledger": url}, dataset=data, out=tmp_path / "run")
    assert reported.metrics["data"]["notes"] == []
    assert "137 records" not in (tmp_path / "run" / "metrics.json").read_text()


def url_rows(url: str) -> int:
    with Ledger(url) as ledger:
        return ledger.head().sequence


def test_without_privacy_data_with_a_budget_are_not_trained_on(url: str) -> None:
    with Ledger(url) as ledger:
        ledger.set_budget("toy", Budget(3.0, 1e-6))
    with pytest.raises(Refused, match=r"Dataset 'toy' has a budget .* Give privacy.epsilon"):
        privfair.train(dataset=toy(), federation=QUICK, run={"ledger": url})


def test_without_noise_nothing_of_data_with_a_budget_is_released(url: str) -> None:
    data = toy(records=100)
    with Ledger(url) as ledger:
        ledger.set_budget(data.name, Budget(50.0, 1e-6))
    before = url_rows(url)
    for channel in ("predictions", "updates"):
        with pytest.raises(InputError, match=f"privacy.{channel} must have noise for 'toy', which has a budget"):
            privfair.train(
                privacy={"epsilon": 2.0, channel: "none"}, federation=QUICK, run={"ledger": url}, dataset=data
            )
    assert url_rows(url) == before


def test_a_run_that_cannot_end_does_not_begin(tmp_path: Path, url: str) -> None:
    """Its plan is fixed beforehand, so its price is known before the counts are paid for."""
    with Ledger(url) as ledger:
        ledger.set_budget("toy", Budget(1.0, 1e-6))
    before = url_rows(url)
    with pytest.raises(BudgetExceeded):
        privfair.train(
            privacy=GIVEN, federation={**QUICK, "rounds": 50}, run={"ledger": url}, dataset=toy(), out=tmp_path / "run"
        )
    assert url_rows(url) == before
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("change", [("rounds = 3", "rounds = 30"), ("count_noise = 2.0", "count_noise = 50.0")])
def test_a_private_run_keeps_its_configuration(tmp_path: Path, url: str, change: tuple[str, str]) -> None:
    out = tmp_path / "run"
    with pytest.raises(Stop):
        privfair.train(
            privacy=GIVEN, federation={**QUICK, "rounds": 3}, run={"ledger": url}, dataset=toy(records=80), out=out,
            report=stop_after(1),
        )  # fmt: skip
    text = (out / "config.toml").read_text()
    assert change[0] in text
    (out / "config.toml").write_text(text.replace(*change))
    with pytest.raises(InputError, match=r"config.toml must be as it was when the private run was started"):
        privfair.train(resume=out, dataset=toy(records=80))


def test_two_processes_do_not_share_a_run(tmp_path: Path, url: str) -> None:
    out = tmp_path / "run"
    with pytest.raises(Stop):
        privfair.train(
            privacy=GIVEN, federation=QUICK, run={"ledger": url}, dataset=toy(records=80), out=out, report=stop_after(1)
        )
    with RunDirectory.open(out).locked(), pytest.raises(Refused, match="Another process is working on the run"):
        privfair.train(resume=out, dataset=toy(records=80))
    privfair.train(resume=out, dataset=toy(records=80))


def test_more_than_planned_has_no_epsilon(tmp_path: Path, url: str) -> None:
    """Two phases: the bound is the plan's. Rows beside it (another process, a copied folder) void it."""
    out = tmp_path / "run"
    sections: dict[str, Any] = {
        "privacy": {"epsilon": 3.0, "delta": 1e-6},
        "aggregation": {"masks": False},  # a masked part would be made anew after the stop, which is refused here
        "run": {"ledger": url},
    }
    with pytest.raises(Stop):
        privfair.train(**sections, federation=QUICK, dataset=toy(records=300), out=out, report=stop_after(1))
    identity = RunDirectory.open(out).read_identity()
    assert identity is not None
    with Ledger(url) as ledger:
        update = next(s for s in spends(url, identity[0]) if s.channel == "updates")
        for _ in range(5):
            ledger.record_past([update])
    reported = privfair.train(resume=out, dataset=toy(records=300)).privacy
    assert reported["epsilon"] == {"rdp": None, "pld": None}
    assert not reported["private"]
    assert (
        f"more was released than the plan had, which alone has a bound ({update.client}: updates)" in reported["claim"]
    )


def test_sets_that_are_said_to_exclude_each_other_do() -> None:
    """Prices rest on it: a record counts in its first set only, whatever the sets say."""
    everyone = ConditioningSet("all", lambda r: np.ones(len(r), dtype=bool))
    positive = ConditioningSet("positive", lambda r: r.labels == 1)
    records = toy().clients[0].train
    assert Notion("own", "prediction", (everyone, positive)).membership(records).sum(axis=1).max() == 2
    for flags in ({"exclusive": True}, {"partition": True}):
        assert Notion("own", "prediction", (positive, everyone), **flags).membership(records).sum(axis=1).max() == 1


def test_sets_that_look_at_other_records_are_refused(url: str) -> None:
    def above_mean(records: Records) -> np.ndarray:
        return np.asarray(records.features[:, 0] > records.features[:, 0].mean())

    notion = Notion("own", "prediction", (ConditioningSet("above", above_mean),))
    with pytest.raises(InputError, match="notion must put each record into its sets by itself"):
        privfair.train(privacy=GIVEN, federation=QUICK, run={"ledger": url}, dataset=toy(), notion=notion)


def test_attributes_whose_plain_names_meet_add_up() -> None:
    base = toy(attributes=2)
    first, second = base.schema.sensitive
    names = tuple(type(first)(name, first.values) for name in ("a,b", "a;b"))
    schema = type(base.schema)(
        base.schema.features,
        base.schema.task,
        base.schema.label,
        base.schema.label_range,
        names,
        base.schema.conditions,
    )
    assert second.name == "s1"
    simulation = build(Config.build({}), Federation("toy", schema, base.clients))
    labels = cell_labels(simulation.cells, schema)
    assert len({label.partition("=")[0] for label in labels}) == 2


def test_no_digest_of_budgeted_data_is_kept(tmp_path: Path, url: str) -> None:
    """Who knows all records but one could test the last by it."""
    with Ledger(url) as ledger:
        ledger.set_budget("toy", Budget(100.0, 1e-6))
    data = toy(records=80)
    privfair.train(privacy=GIVEN, federation=QUICK, run={"ledger": url}, dataset=data, out=tmp_path / "run")
    kept = b"".join(p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file())
    assert data.fingerprint().encode() not in kept
