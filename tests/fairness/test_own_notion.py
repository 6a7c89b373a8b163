"""A notion of one's own, named in the configuration like a model: package.module:name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privfair
from accountant.errors import InputError
from privfair.config import Config
from privfair.fairness.notions import (
    EQUALIZED_ODDS,
    EVERYONE,
    NAMES,
    ConditioningSet,
    Notion,
    notion_by_name,
    notion_figure,
)
from privfair.privacy.run_ledger import definition
from privfair.reports.run_facts import read_run
from privfair.reports.run_figures import fairness_of, rounds_of
from privfair.reports.run_page import settings, tiles
from privfair.sweeps.journal import COLUMNS, HISTORY
from tests.end_to_end.federations import toy

MODULE = """
from privfair.fairness.notions import ConditioningSet, Notion

LARGE_B = Notion("large b", "prediction", (ConditioningSet("b above 0", lambda r: r.features[:, 1] > 0),))
EMPTY = Notion("empty", "prediction", ())
NUMBER = 5
RECORDS = ConditioningSet("of records", lambda r: r.nothing)
RAISING = Notion("raising", "prediction", (RECORDS,))


def failing(schema):
    raise RuntimeError("no such\\nfeature")


def called_accuracy(schema):
    return Notion("accuracy", "prediction", (RECORDS,))


def called_odds(schema):
    return Notion("equalized_odds", "prediction", (RECORDS,))


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
    schema = toy().schema
    named = Config.build({"fairness": {"notion": "own_notions_of_a_test:LARGE_B"}})
    plain = Config.build({})
    given = notion_by_name("own_notions_of_a_test:LARGE_B", schema)
    assert definition(named, schema, None) == definition(plain, schema, given) != definition(plain, schema, None)


@pytest.mark.parametrize(
    ("name", "reported"),
    [
        (
            "nowhere_at_all:x",
            "must name a notion that can be imported (ModuleNotFoundError: No module named 'nowhere_at_all')",
        ),
        ("own_notions_of_a_test:missing", "has no attribute 'missing'"),
        (":x", "must name a notion that can be imported"),
        ("os:getcwd", "must name a Notion, or a function of the schema that makes one (TypeError: "),
        ("own_notions_of_a_test:failing", "that makes one (RuntimeError: no such feature); found 'own_notions_of_a"),
        ("own_notions_of_a_test:NUMBER", "must name a Notion with at least one conditioning set"),
        ("own_notions_of_a_test:EMPTY", "must name a Notion with at least one conditioning set"),
    ],
)
def test_what_is_no_notion_is_refused_with_the_reason(name: str, reported: str) -> None:
    with pytest.raises(InputError, match=r"^fairness\.notion must") as error:
        notion_by_name(name, toy().schema)
    assert reported in str(error.value)


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("1 / 0", "(ZeroDivisionError: division by zero); found 'broken_code_of_a_test:x'."),
        ("def f(:", "(SyntaxError: invalid syntax (broken_code_of_a_test.py, line 1))"),
        ("import sys; sys.exit(0)", "(SystemExit: 0)"),
        ("raise KeyError", "(KeyError); found"),
    ],
)
def test_a_module_that_cannot_be_imported_is_told_with_its_exception(tmp_path: Path, text: str, reported: str) -> None:
    (tmp_path / "broken_code_of_a_test.py").write_text(text)
    for call, start in (
        (lambda: notion_by_name("broken_code_of_a_test:x", toy().schema), "fairness.notion must name a notion that "),
        (lambda: privfair.train(model={"name": "broken_code_of_a_test:x"}), "model.name must name a factory that "),
    ):
        with pytest.raises(InputError) as error:
            call()
        assert str(error.value).startswith(start)
        assert reported in str(error.value)
        assert error.value.__cause__ is not None


def test_names_of_other_figures_are_refused() -> None:
    for name in ("called_accuracy", "called_odds"):
        with pytest.raises(
            InputError, match=r"^name of a notion must not be that of .*; found '.*'\. Choose another\."
        ):
            notion_by_name(f"own_notions_of_a_test:{name}", toy().schema)
    given = Notion("risk_parity", "prediction", (EVERYONE,))
    with pytest.raises(InputError, match="name of a notion must not be that of a known notion"):
        privfair.train(dataset=toy(), notion=given, federation=FAST)
    privfair.train(dataset=toy(), notion=EQUALIZED_ODDS, federation=FAST)


def test_every_column_of_histories_and_results_is_refused() -> None:
    own = Notion("own", "prediction", (EVERYONE,))
    result = privfair.train(dataset=toy(), notion=own, federation=FAST)
    for column in {*COLUMNS, *HISTORY, *(name for row in result.rows for name in row), "mmd2"} - {"own", *NAMES}:
        with pytest.raises(InputError, match="name of a notion must not be that of another figure"):
            Notion(column, "prediction", (EVERYONE,))


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (("", "prediction", ()), "name of a notion must be a text that is not empty; found ''."),
        (("x", "label", ()), "score of notion 'x' must be prediction or loss; found 'label'."),
        (("x", "loss", EVERYONE), "sets of notion 'x' must be a tuple of ConditioningSet"),
    ],
)
def test_incomplete_notions_are_refused(arguments: tuple[Any, ...], reported: str) -> None:
    with pytest.raises(InputError) as error:
        Notion(*arguments)
    assert reported in str(error.value)


def test_a_set_whose_function_raises_is_named_with_the_exception() -> None:
    with pytest.raises(InputError) as error:
        privfair.train(dataset=toy(), fairness={"notion": "own_notions_of_a_test:RAISING"}, federation=FAST)
    assert str(error.value).startswith("conditioning set 'of records' must say yes or no for each record")
    assert "found \"AttributeError: 'Records' object has no attribute 'nothing'\"." in str(error.value)


def test_reports_and_progress_are_about_the_own_notion(tmp_path: Path) -> None:
    name = "own_notions_of_a_test:LARGE_B"
    result = privfair.train(dataset=toy(), fairness={"notion": name}, federation=FAST, out=tmp_path / "run")
    assert result.metrics["notion"] == "large b"
    gap = result.unfairness["large b"]
    assert gap is not None
    assert notion_figure(result.rows[-1], name) == gap
    assert notion_figure(result.rows[-1], "statistical_parity") == result.unfairness["statistical_parity"]
    assert notion_figure({"round": 1}, name) is None
    facts = read_run(tmp_path / "run", include_private=True)
    (fairness,) = fairness_of(facts)
    assert f"what 'large b' compares differs by at most {gap:.4f}." in fairness.sentence
    figure = rounds_of(facts)
    assert figure is not None
    assert "unfairness: large b" in str(figure)
    first = tiles(facts, [fairness], None)[0]
    low, high = result.metrics["confidence_intervals"][result.metrics["notion"]]
    assert first.more == f"Large b, 95% interval {low:.4f} to {high:.4f}"
    assert first.exact == gap
    assert settings(facts)["Fairness notion"] == "Large b"


def test_a_set_that_does_not_answer_for_each_record_is_refused() -> None:
    notion = Notion("wrong", "prediction", (ConditioningSet("all", lambda records: np.array(True)),))
    with pytest.raises(InputError, match=r"conditioning set 'all' must say yes or no for each record"):
        notion.membership(toy().pooled_train())
