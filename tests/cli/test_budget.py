from __future__ import annotations

import json
import sqlite3

import pytest
from typer.testing import CliRunner

from accountant import Budget, BudgetExceeded, Gaussian, InputError, Ledger, NotPrivate
from accountant.audit import audit
from accountant.budget import rounded_down
from accountant.errors import Refused
from accountant.events import NeighbouringMismatch
from accountant.ledger.signing import OwnerKey, fingerprint_csv
from accountant.spending import Spend
from privfair.cli.budget import app
from privfair.cli.ledger import percent, shown


@pytest.fixture
def url(tmp_path) -> str:
    return f"sqlite:///{tmp_path}/ledger.sqlite"


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def set_budget(url: str, *more: str, name: str = "patients", epsilon: str = "3"):
    return run("set", name, "--epsilon", epsilon, "--delta", "1e-5", "--ledger", url, *more)


def release(url: str) -> None:
    """From the first release on a budget keeps its order."""
    with Ledger(url) as ledger:
        ledger.reserve([Spend("patients", Gaussian(50.0))])


def test_set_and_show(url):
    result = set_budget(url, "--reason", "ethics board", "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert answer["dataset"] == "patients"
    assert (answer["budget"]["epsilon"], answer["budget"]["left"]) == (3.0, 1.0)
    with Ledger(url) as ledger:
        ledger.reserve([Spend("patients", Gaussian(10.0), client="north", group="sex=F")])
        ledger.reserve([Spend("other", Gaussian(10.0))])
        assert audit(ledger, pld=False).datasets[1].budget_changes[0].reason == "ethics board"
    shown = json.loads(run("show", "--ledger", url, "--json").stdout)["datasets"]
    assert shown["other"]["budget"] is None
    assert shown["patients"]["budget"]["worst_client"] == "north"
    assert shown["patients"]["budget"]["worst_groups"] == ["sex=F"]
    assert 0 < shown["patients"]["budget"]["left"] < 1
    one = json.loads(run("show", "patients", "--ledger", url, "--json").stdout)
    assert one["budget"] == shown["patients"]["budget"]


def test_the_table_for_people(url, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    set_budget(url)
    with Ledger(url) as ledger:
        ledger.register("toy", simulation=True)
    output = run("show", "--ledger", url).output
    for text in ("patients", "add or remove one record", "100.0%", "the name only", "simulation, no ε claims"):
        assert text in output


def test_epsilon_spent_and_what_fits_are_shown(url, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    set_budget(url)
    with Ledger(url) as ledger:
        ledger.reserve([Spend("patients", Gaussian(3.0))])
        budget, spent = ledger.budget("patients"), ledger.spent("patients")["", ""]
    reported = json.loads(run("show", "patients", "--ledger", url, "--json").stdout)["budget"]
    assert reported["epsilon_spent"] == budget.epsilon_at(spent)
    room = budget.remaining(spent)
    assert reported["epsilon_fits"] == {"gaussian": room.gaussian, "pure": room.pure}
    output = run("show", "--ledger", url).output
    assert "ε spent" in output
    assert max(map(len, output.splitlines()[1:])) <= 80
    assert (
        f"patients: ε = {shown(reported['epsilon_spent'])} of 3 is spent. What certainly still fits: ε of at most "
        f"{rounded_down(room.pure)} with δ = 0, or ε of at most {rounded_down(room.gaussian)} at δ = 1e-05 by Gaussian "
        "noise on all records."
    ) in " ".join(output.split())


def test_a_budget_used_up_without_bound_is_shown(url):
    with Ledger(url) as ledger:
        ledger.reserve([Spend("patients", NotPrivate())])
    set_budget(url)
    reported = run("show", "--ledger", url)
    assert reported.exit_code == 1
    assert "ε = ∞ of 3 is spent: the budget is exceeded" in " ".join(reported.output.split())
    assert json.loads(run("show", "--ledger", url, "--json").stdout)["datasets"]["patients"]["budget"][
        "epsilon_spent"
    ] == "inf"  # fmt: skip


def test_an_edited_budget_is_not_shown(url):
    set_budget(url)
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    wide = Budget(30.0, 1e-5).to_json()
    connection.execute("UPDATE datasets SET budget = ?", (wide,))
    connection.commit()
    connection.close()
    for command in (run("show", "--ledger", url), set_budget(url)):
        assert isinstance(command.exception, Refused)
        assert "run privfair audit" in str(command.exception)


def test_raising_keeps_the_order(url):
    first = json.loads(set_budget(url, "--json").stdout)["budget"]
    release(url)
    second = json.loads(set_budget(url, "--json", epsilon="5").stdout)["budget"]
    assert second["order"] == first["order"]
    assert second["capacity"] > first["capacity"]


def test_lowering_below_what_is_spent_shows_as_exceeded(url):
    set_budget(url)
    with Ledger(url) as ledger:
        ledger.reserve([Spend("patients", Gaussian(3.0))])
    set_budget(url, epsilon="1.7")
    with Ledger(url) as ledger:
        budget, spent = ledger.budget("patients"), ledger.spent("patients")["", ""]
    reported = run("show", "--ledger", url)
    assert reported.exit_code == 1
    output = " ".join(reported.output.split())
    after, left = shown(budget.epsilon_at(spent)), percent(1 - spent / budget.capacity)
    assert f"patients: ε = {after} of 1.7 is spent: the budget is exceeded. Nothing more fits." in output
    assert "exceeded" in output.partition("patients:")[0]
    assert left not in output
    assert f"by {left.removeprefix('-')}" in output
    assert json.loads(run("show", "--ledger", url, "--json").stdout)["datasets"]["patients"]["budget"]["exceeded"]
    with Ledger(url) as ledger, pytest.raises(BudgetExceeded, match="0 of 1 releases fit"):
        ledger.reserve([Spend("patients", Gaussian(1000.0))])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--people", "100000"), "delta must be below 1/100000"),
        (("--adjacency", "both"), "adjacency must be one of"),
        (("--data", "x.csv"), "--key must be given with --data"),
    ],
)
def test_bad_input(url, more, message):
    result = set_budget(url, *more)
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)


@pytest.mark.parametrize(
    ("epsilon", "more"),
    [("nan", ()), ("-1", ()), ("3", ("--unit", "person")), ("3", ("--data", "none.csv")), ("3", ("--reason", "a\nb"))],
)
def test_bad_input_leaves_no_new_ledger(url, tmp_path, epsilon, more):
    assert isinstance(set_budget(url, *more, epsilon=epsilon).exception, InputError)
    assert list(tmp_path.iterdir()) == []


def test_lowering_to_what_the_order_cannot_express_names_the_smallest_epsilon(url):
    set_budget(url, epsilon="8")
    release(url)
    result = set_budget(url, epsilon="0.5")
    assert isinstance(result.exception, InputError)
    assert "epsilon must be above" in str(result.exception)
    assert json.loads(run("show", "patients", "--ledger", url, "--json").stdout)["budget"]["epsilon"] == 8


def test_a_budget_takes_the_adjacency_of_the_releases(url):
    with Ledger(url) as ledger:
        ledger.reserve([Spend("patients", Gaussian(10.0, adjacency="replace-one"))])
    assert json.loads(set_budget(url, "--json").stdout)["adjacency"] == "replace-one"
    assert isinstance(set_budget(url, "--adjacency", "add-or-remove").exception, NeighbouringMismatch)


def test_binding_to_data_with_a_key(url, tmp_path):
    made = run("new-key", str(tmp_path / "owner.key"), "--json")
    key = OwnerKey.load(tmp_path / "owner.key")
    assert json.loads(made.stdout) == {"key": str(tmp_path / "owner.key"), "key_id": key.key_id}
    data = tmp_path / "data.csv"
    data.write_text("age,sex\n31,F\n45,M\n")
    bind = ("--data", str(data), "--key", str(tmp_path / "owner.key"))
    answer = json.loads(set_budget(url, *bind, "--json").stdout)
    assert answer["fingerprint"] == fingerprint_csv(data, key)
    data.write_text("age,sex\n31,F\n46,M\n")
    assert "renew=True" in str(set_budget(url, *bind).exception)
    assert set_budget(url, *bind, "--changed").exit_code == 0
    with Ledger(url, key=key) as ledger:
        report = audit(ledger, pld=False, key=key)
    assert report.fine
    assert report.signatures.startswith("checked")
    assert isinstance(set_budget(url).exception, InputError)  # a signed ledger wants its key


def test_a_key_is_also_welcome_for_an_unsigned_ledger(url, tmp_path):
    Ledger(url).close()
    OwnerKey.create(tmp_path / "owner.key")
    (tmp_path / "data.csv").write_text("a\n1\n")
    result = set_budget(url, "--data", str(tmp_path / "data.csv"), "--key", str(tmp_path / "owner.key"))
    assert result.exit_code == 0, result.exception
    assert "was created without a key: --key binds the data, but no row is signed." in result.stderr
    assert "note" not in result.stdout


def test_a_key_that_would_sign_nothing_is_refused(url, tmp_path):
    set_budget(url)
    OwnerKey.create(tmp_path / "owner.key")
    result = set_budget(url, "--key", str(tmp_path / "owner.key"), epsilon="5")
    assert isinstance(result.exception, InputError)
    assert str(result.exception) == (
        f"--key can only sign a ledger that was created with a key; found {url!r}. Nothing was set. A ledger is signed "
        "from its first row on. If nothing was released yet, set the budget in a new one (--ledger sqlite:///NEW-FILE "
        "--key KEY); otherwise that would forget what was spent (Ledger.record_past carries it over). To go on without "
        "signatures, leave out --key."
    )
    with Ledger(url) as ledger:
        assert ledger.budget("patients").epsilon == 3


def test_showing_needs_a_ledger_and_a_known_dataset(url):
    assert "must exist" in str(run("show", "--ledger", url).exception)
    set_budget(url)
    assert "It knows: patients" in str(run("show", "nobody", "--ledger", url).exception)


def test_an_empty_ledger(url):
    Ledger(url).close()
    assert "No dataset has a budget" in run("show", "--ledger", url).output
