"""Methods and options that cannot be made private say why, before anything is released or written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import privfair
from accountant.errors import InputError
from tests.end_to_end.federations import toy
from tests.privacy.plans import GIVEN, RATES

USE = r"Use mmd_fedavg or fedavg, or train without privacy\."


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"federation": {"method": "local_fairness"}}, r"federation.method must have a loss for each record by itself, "
         rf"and its penalty couples the records of a minibatch; found 'local_fairness'\. {USE}"),
        ({"federation": {"method": "fairfed"}}, r"federation.method must send nothing without noise, and fairfed sends "
         rf"local figures \(confusion\); found 'fairfed'\. {USE}"),
        ({"federation": {"method": "fedfb"}}, r"federation.method must send nothing without noise, and fedfb sends "
         rf"local figures \(group_losses\); found 'fedfb'\. {USE}"),
        ({"federation": {"method": "agnostic"}}, r"federation.method must send nothing without noise, and agnostic "
         rf"sends local figures \(loss\); found 'agnostic'\. {USE}"),
        ({"federation": {"method": "centralized"}}, r"federation.method must have data holders to be private; found "
         rf"'centralized'\. {USE}"),
        ({"federation": {"drift_correction": "own"}}, r"federation.drift_correction must be none with DP-SGD: it makes "
         r"one record's gradient depend on the client's other records; found 'own'\. Use few local steps"),
        ({"federation": {"drift_correction": "shared"}}, r"federation.drift_correction must be none with DP-SGD"),
        ({"federation": {"optimizer": "scaffold"}}, r"federation.optimizer must not be scaffold: control variates are "
         r"a second message of every client, and have no price; found 'scaffold'\. Use fedavg, fedprox, fedadam"),
        ({"privacy": {**GIVEN, **RATES, "evaluation": "laplace"}}, r"privacy.evaluation_noise must be given, or "
         r"privacy.epsilon, from which it follows"),
        ({"privacy": GIVEN, "aggregation": {"masks": False}},
         r"privacy.epsilon must be given where rates are planned from released counts"),
        ({"privacy": {**GIVEN, **RATES, "epsilon": 0.1}}, r"privacy.epsilon must be at least what the given noise"),
        ({"fairness": {"notion": "risk_parity"}}, r"fairness.notion must compare scores that have a range"),
        ({"model": {"name": "tests.privacy.test_refusals:normed"}}, r"BatchNorm"),
    ],
)  # fmt: skip
def test_reasons(sections: dict[str, Any], message: str, tmp_path: Path) -> None:
    given = {"privacy": {**GIVEN, **RATES}, **sections}
    ledger = tmp_path / "l.sqlite"
    with pytest.raises(InputError, match=message):
        privfair.train(given, dataset=toy(), run={"ledger": f"sqlite:///{ledger}"}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert rows(ledger) == 0


def normed(features: int) -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(features, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 1))


def rows(path: Path) -> int:
    """How many releases a ledger has; none where there is no ledger."""
    from accountant.ledger.ledger import Ledger
    from accountant.ledger.storage import fetch

    if not path.exists():
        return 0
    with Ledger(f"sqlite:///{path}", create=False) as ledger, ledger.reading() as connection:
        return int(fetch(connection, "SELECT count(*) FROM ledger WHERE kind = 'spend'")[0][0])


def test_evaluation_of_regression_is_refused(tmp_path: Path) -> None:
    privacy = {**GIVEN, **RATES, "evaluation": "laplace", "evaluation_noise": 2.0}
    with pytest.raises(InputError, match=r"privacy.evaluation must be none for regression: it counts decisions"):
        privfair.train(
            dataset=toy(task="regression"), privacy=privacy, run={"ledger": f"sqlite:///{tmp_path}/l.sqlite"}
        )
    assert rows(tmp_path / "l.sqlite") == 0


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"privacy": {"predictions": "laplace"}}, r"privacy.predictions needs a budget or noise to be private; found "
         r"'neither'\. Give privacy.epsilon, the budget of the whole run, or noise scales"),
        ({"privacy": {"updates": "dp_sgd"}}, r"privacy.updates needs a budget or noise to be private"),
        ({"run": {"reproducible_noise": True}}, r"run.reproducible_noise is for private runs; found True\. Give "),
        ({"privacy": {"epsilon": 0}}, r"privacy.epsilon must be greater than 0"),
        ({"privacy": {"epsilom": 1}}, r"privacy.epsilom is not a key that is known here.*Did you mean 'epsilon'"),
        ({"privacy": {"noise_multiplier": float("nan")}}, r"privacy.noise_multiplier"),
    ],
)  # fmt: skip
def test_half_a_privacy_section_is_no_privacy(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        privfair.train(sections, dataset=toy(), federation={"rounds": 1})
