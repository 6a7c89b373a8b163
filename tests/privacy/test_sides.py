"""A private run whose evaluation has all of ε: a record is on one side of the division, and pays for that side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privfair
from accountant.errors import InputError
from accountant.events import Gaussian
from accountant.ledger.ledger import Ledger
from accountant.spending import TEST, TRAIN, Spend, side_group
from accountant.worst_case import released_epsilon
from privfair.channels.base import registered
from privfair.channels.counts import CountsChannel
from privfair.config import Config
from privfair.datasets.records import Federation
from privfair.federated.messages import Counts
from privfair.privacy.run_ledger import sides_of
from tests.end_to_end.federations import toy

PRIVACY = {"epsilon": 4.0, "sampling_rate": 0.5, "local_steps": 1, "evaluation_share": 1.0}


def run(folder: Path, data: Federation, **privacy: Any) -> privfair.api.Result:
    return privfair.train(
        dataset=data, out=folder, privacy={**PRIVACY, **privacy}, fairness={"tracker": "embedding"},
        federation={"rounds": 2, "learning_rate": 0.5}, aggregation={"scheme": "plain", "masks": False},
        run={"ledger": f"sqlite:///{folder}.sqlite", "reproducible_noise": True},
    )  # fmt: skip


def without(data: Federation, part: str, row: int = 3) -> Federation:
    """The federation without one record of its first client."""
    first = data.clients[0]
    records = getattr(first, part)
    kept = replace(first, **{part: records.take(np.delete(np.arange(len(records)), row))})
    return replace(data, clients=(kept, *data.clients[1:]))


def test_no_channel_but_the_evaluation_is_of_test_records() -> None:
    sides = {channel.name: channel.side for channel in registered()}
    assert {name for name, side in sides.items() if side == TEST} == {"evaluation"}
    trained = {"counts", "moments", "products", "predictions", "embeddings", "updates"}
    assert {name for name, side in sides.items() if side == TRAIN} == trained


def test_a_test_record_less_changes_nothing_but_the_evaluation(tmp_path: Path) -> None:
    data = toy(records=120)
    whole, less = run(tmp_path / "a", data), run(tmp_path / "b", without(data, "test"))
    assert whole.metrics["model"]["digest"] == less.metrics["model"]["digest"]
    assert whole.metrics["released"]["groups"] != less.metrics["released"]["groups"]


def test_a_channel_of_training_records_that_counts_test_records_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mistake that the test above is for."""
    respond = CountsChannel.respond

    def peeking(self: CountsChannel, request: Any, client: Any, entropy: Any) -> Counts:
        found = respond(self, request, client, entropy)
        return replace(found, cells=found.cells + 40 * len(client.test_data.records), records=found.records)

    monkeypatch.setattr(CountsChannel, "respond", peeking)
    data, privacy = toy(records=120), {"sampling_rate": None, "local_steps": None}
    whole, less = run(tmp_path / "a", data, **privacy), run(tmp_path / "b", without(data, "test"), **privacy)
    assert whole.metrics["model"]["digest"] != less.metrics["model"]["digest"]


@pytest.mark.parametrize("phases", ["one", "two"])
def test_either_side_may_have_all_of_epsilon_and_the_run_has_no_more(tmp_path: Path, phases: str) -> None:
    more = {} if phases == "one" else {"sampling_rate": None, "local_steps": None}
    result = run(tmp_path / "run", toy(records=150), **more)
    with Ledger(f"sqlite:///{tmp_path}/run.sqlite", create=False) as ledger:
        (name,) = ledger.runs(ledger.datasets()[0].name)
        rows = [spend for _, spend in ledger.spends(run=name)]
    delta = result.privacy["delta"]
    sides = {side: next(row.group for row in rows if row.group.endswith(f"={side}")) for side in (TRAIN, TEST)}
    division = sides[TRAIN].removeprefix(f"side in {name} ").removesuffix(f"={TRAIN}")
    assert sides == {side: side_group(f"{name} {division}", side) for side in (TRAIN, TEST)}
    assert {row.group for row in rows} == set(sides.values())
    assert {row.channel for row in rows if row.group == sides[TEST]} == {"evaluation"}
    of = {side: released_epsilon([r for r in rows if r.group == group], delta) for side, group in sides.items()}
    together = released_epsilon(rows, delta)
    assert together.pld == pytest.approx(max(of[TRAIN].pld, of[TEST].pld), rel=1e-9)
    assert result.privacy["epsilon"]["pld"] <= 4.0 * (1 + 1e-9)
    assert together.pld <= 4.0 * (1 + 1e-9)
    assert of[TEST].pld > 4.0 * 0.5  # retries, which were not needed, have their room


def test_the_evaluation_has_far_less_noise_than_from_a_share(tmp_path: Path) -> None:
    data = toy(records=120)
    sided = run(tmp_path / "a", data).privacy["noise"]["evaluation"]["scale"]
    shared = run(tmp_path / "b", data, evaluation_share=0.05).privacy["noise"]["evaluation"]["scale"]
    assert sided < shared / 5


def test_where_a_record_may_change_sides_both_are_paid_for(tmp_path: Path) -> None:
    for privacy, tracker in (({"counts": "public"}, "embedding"), ({"prediction_rate": 0.5}, "samples")):
        with pytest.raises(InputError, match=r"privacy\.evaluation_share must be below 1 here"):
            privfair.train(
                dataset=toy(), privacy={**PRIVACY, **privacy}, fairness={"tracker": tracker}, federation={"rounds": 1},
                run={"ledger": f"sqlite:///{tmp_path}/none.sqlite"},
            )  # fmt: skip


def test_another_division_under_the_same_name_is_another_attribute_and_adds_up() -> None:
    one, other = (Config.build({"run": {"seed": seed}}) for seed in (4, 5))
    assert sides_of(one) != sides_of(other)
    assert sides_of(one) != sides_of(Config.build({"run": {"seed": 4}, "data": {"test_fraction": 0.5}}))

    def row(config: Config, side: str) -> Spend:
        return Spend("d", Gaussian(1.0), "c", side_group(f"run {sides_of(config)}", side), "x", "run")

    alone = released_epsilon([row(one, TRAIN)], 1e-5).rdp
    twice = released_epsilon([row(one, TRAIN), row(one, TRAIN)], 1e-5).rdp
    assert released_epsilon([row(one, TRAIN), row(one, TEST)], 1e-5).rdp == alone
    assert released_epsilon([row(one, TRAIN), row(other, TEST)], 1e-5).rdp == pytest.approx(twice)


def test_records_that_were_given_are_not_taken_for_divided(tmp_path: Path) -> None:
    """The same records on both sides: nobody checks that, so both sides are paid for."""
    data = toy(records=1200)  # so many that the noise of their released total leaves a run, whatever it is
    twice = replace(data, clients=tuple(replace(client, test=client.train) for client in data.clients))
    url = f"sqlite:///{tmp_path}/l.sqlite"
    found = privfair.train(
        dataset=twice, fairness={"target": 0.2}, privacy={"epsilon": 2.0}, federation={"rounds": 2}, run={"ledger": url}
    )
    with Ledger(url, create=False) as ledger:
        (name,) = ledger.runs(ledger.datasets()[0].name)
        rows = [spend for _, spend in ledger.spends(run=name)]
    assert {row.group for row in rows if row.channel == "evaluation"} == {""}
    assert found.privacy["epsilon"]["pld"] <= 2.0 * (1 + 1e-9)


def test_a_channel_without_a_side_leaves_no_run_with_sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CountsChannel, "side", "")
    with pytest.raises(InputError, match=r"privacy\.evaluation_share must be below 1"):
        run(tmp_path / "run", toy(records=60))
