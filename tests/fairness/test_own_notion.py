"""A notion of one's own, named in the configuration like a model: package.module:name."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import privfair
from accountant.errors import InputError
from privfair.config import Config
from privfair.fairness.notions import ConditioningSet, Notion, notion_by_name
from privfair.privacy.books import definition
from tests.end_to_end.federations import toy

MODULE = """
from privfair.fairness.notions import ConditioningSet, Notion

LARGE_B = Notion("large b", "prediction", (ConditioningSet("b above 0", lambda r: r.features[:, 1] > 0),))
EMPTY = Notion("empty", "prediction", ())
NUMBER = 5


def by_schema(schema):
    at = schema.features.index("b")
    return Notion("large b", "prediction", (ConditioningSet("b above 0", lambda r: r.features[:, at] > 0),))
"""
FAST = {"rounds": 2, "learning_rate": 0.5}


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_notions_of_a_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_notions_of_a_test", raising=False)


@pytest.mark.parametrize("name", ["LARGE_B", "by_schema"])
def test_the_named_notion_trains_the_model_of_the_given_one(name: str) -> None:
    given = Notion("large b", "prediction", (ConditioningSet("b above 0", lambda r: r.features[:, 1] > 0),))
    by_object = privfair.train(dataset=toy(), notion=given, federation=FAST)
    by_name = privfair.train(dataset=toy(), fairness={"notion": f"own_notions_of_a_test:{name}"}, federation=FAST)
    assert by_name.unfairness["large b"] == by_object.unfairness["large b"]
    x = np.eye(4, dtype=np.float32)
    assert np.array_equal(by_name.model.scores(x), by_object.model.scores(x))
    other = privfair.train(dataset=toy(), federation=FAST)
    assert not np.array_equal(by_name.model.scores(x), other.model.scores(x))


def test_runs_of_an_own_notion_are_known_in_the_ledger_by_its_sets() -> None:
    data = toy()
    named = Config.build({"fairness": {"notion": "own_notions_of_a_test:LARGE_B"}})
    plain = Config.build({})
    given = notion_by_name("own_notions_of_a_test:LARGE_B", data.schema)
    assert definition(named, data, None) == definition(plain, data, given) != definition(plain, data, None)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nowhere_at_all:x", "must name a notion that can be imported (No module named 'nowhere_at_all')"),
        ("own_notions_of_a_test:missing", "has no attribute 'missing'"),
        (":x", "must name a notion that can be imported"),
        ("own_notions_of_a_test:NUMBER", "must name a Notion with at least one conditioning set"),
        ("own_notions_of_a_test:EMPTY", "must name a Notion with at least one conditioning set"),
    ],
)
def test_what_is_no_notion_is_refused_with_the_reason(name: str, told: str) -> None:
    with pytest.raises(InputError, match=r"^fairness\.notion must") as error:
        notion_by_name(name, toy().schema)
    assert told in str(error.value)


def test_a_set_that_does_not_answer_for_each_record_is_refused() -> None:
    notion = Notion("wrong", "prediction", (ConditioningSet("all", lambda records: np.array(True)),))
    with pytest.raises(InputError, match=r"conditioning set 'all' must say yes or no for each record"):
        notion.membership(toy().pooled_train())
