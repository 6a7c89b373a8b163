"""The page of a run: its numbers are those of the files, and nothing is on it that was not released."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from accountant.errors import Refused
from privfair.numbers import shown
from privfair.reports.figures import shown_guesses
from privfair.reports.run_page import run_page
from tests.reports.folders import HOSTILE_CLIENTS, HOSTILE_GROUPS
from tests.reports.reading import Page

EXACT = (
    "accuracy", "rmse", "unfairness", "unfairness_of", "confidence_intervals", "by_attribute", "groups", "objective",
    "seconds",
)  # fmt: skip


def metrics_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "metrics.json").read_text()))


def copied(folder: Path, to: Path, change: dict[str, Any] | None = None) -> Path:
    """The run in another folder, with other metrics."""
    shutil.copytree(folder, to)
    if change is not None:
        (to / "metrics.json").write_text(json.dumps(change))
        if json.loads((to / "privacy.json").read_text()) != change["privacy"]:
            (to / "privacy.json").write_text(json.dumps(change["privacy"]))
    return to


def figures_in(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [number for inner in value.values() for number in figures_in(inner)]
    if isinstance(value, list):
        return [number for inner in value for number in figures_in(inner)]
    return [float(value)] if isinstance(value, int | float) and not isinstance(value, bool) else []


def other(value: Any) -> Any:
    """The same with every number and text another."""
    if isinstance(value, dict):
        return {key: other(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [other(inner) for inner in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return 0.123454321 * (value or 1)
    return f"other {value}" if isinstance(value, str) else value


def test_the_page_does_not_depend_on_anything_exact(private_run: Path, tmp_path: Path) -> None:
    """Whatever the exact figures are, the page is the same to the last byte; with --include-private it is not."""
    metrics = metrics_of(private_run)
    assert metrics["figures"] == "exact"
    changed = {name: other(value) if name in EXACT else value for name, value in metrics.items()}
    changed["data"] = {**metrics["data"], "clients": other(metrics["data"]["clients"]), "notes": ["1234 rows dropped"]}
    changed["never heard of"] = {"figure": 0.987656789}
    one, two = copied(private_run, tmp_path / "a" / "run"), copied(private_run, tmp_path / "b" / "run", changed)
    (two / "history.csv").write_text("round,accuracy\n0,0.5\n1,0.25\n")

    def rendered(folder: Path) -> str:
        return run_page(folder).replace(str(folder), "RUN")

    assert rendered(one) == rendered(two)
    assert run_page(one, include_private=True).replace(str(one), "RUN") != rendered(one)


def test_no_exact_figure_is_on_the_page(private_run: Path) -> None:
    metrics = metrics_of(private_run)
    released = set(figures_in(metrics["released"])) | set(figures_in(metrics["privacy"]))
    exact = [number for name in EXACT for number in figures_in(metrics[name])]
    telling = {repr(number) for number in exact if len(repr(number)) > 6 and number not in released}
    assert len(telling) > 10
    page, private = run_page(private_run), run_page(private_run, include_private=True)
    assert [text for text in telling if text in page] == []
    assert any(text in private for text in telling)
    for name in ("metrics.json", "history.csv"):  # a digest would confirm a guess
        assert name not in Page(page).text.split("Checksums")[1].split("The whole configuration")[0]


def test_released_figures_are_those_of_the_file(private_run: Path) -> None:
    metrics = metrics_of(private_run)
    released = metrics["released"]
    page = Page(run_page(private_run))
    rows, exact = page.rows("Groups of A"), page.exact("Groups of A")
    assert rows[0] == ["A", "records", "positive decisions", "… of positive labels (TPR)", "… of negative labels (FPR)"]
    for number, (group, row) in enumerate(released["groups"]["A"].items(), start=1):
        assert rows[number][0] == group
        wanted = [row[k] for k in ("records", "selection_rate", "true_positive_rate", "false_positive_rate")]
        assert exact[number][1:] == wanted
        shown_rates = [f"{100 * share:.1f}%" for share in wanted[1:]]
        assert rows[number][1] == f"{wanted[0]:,.0f}"
        assert [text.split()[0] for text in rows[number][2:]] == shown_rates  # their intervals follow
        assert all(" to " in text for text in rows[number][2:])
    gaps = {row[0]: value[2] for row, value in zip(page.rows("Largest differences"), page.exact("Largest differences"),
                                                   strict=True)}  # fmt: skip
    assert gaps["Statistical parity"] == released["unfairness"]["statistical_parity"]
    assert gaps["Equalized odds"] == released["unfairness"]["equalized_odds"]
    assert released["accuracy"] in page.values
    assert "show the uncertainty from that noise and from which people happen to be in the test records" in page.text


def test_the_privacy_of_the_run_is_that_of_the_statement(private_run: Path) -> None:
    privacy = json.loads((private_run / "privacy.json").read_text())
    page = Page(run_page(private_run))
    epsilon = min(privacy["epsilon"].values())
    assert f"ε = {shown(epsilon)}, δ = 0.00001: somebody who guesses whether a certain record took part" in page.text
    assert f"at most {shown_guesses(epsilon, 1e-5)} of cases" in page.text
    assert epsilon in page.values
    assert page.exact("ε of the whole run")[1][1:] == [privacy["epsilon"]["pld"], privacy["epsilon"]["rdp"]]
    for caption, kind in (
        ("ε by group", "by_group"),
        ("ε of each kind", "by_channel"),
        ("ε by data holder", "by_client"),
    ):
        wanted = [[value["pld"], value["rdp"]] for value in privacy[kind].values()]
        assert [row[1:] for row in page.exact(caption)[1:]] == wanted
    drawn = [row[1] for row in page.exact("What it cost, round by round")[1:]]
    assert drawn == list(privacy["by_round"].values())
    for line in (*privacy["not_covered"], *privacy["assumptions"], privacy["claim"]):
        assert " ".join(line.split()) in page.text
    assert privacy["ledger"]["head"] in page.text
    assert "No lifetime budget is set for 'synthetic'" in page.text


def test_numbers_of_records_are_the_released_ones(budgeted_run: Path, private_run: Path) -> None:
    clients = metrics_of(budgeted_run)["data"]["clients"]
    page = Page(run_page(budgeted_run))
    assert [row[1] for row in page.exact("The data holders")[1:]] == [c["released"] for c in clients.values()]
    assert page.rows("The data holders")[0] == ["data holder", "records, counted with noise"]
    assert page.rows("The data holders")[1][0] == "north"
    assert Page(run_page(private_run)).rows("The data holders")[0][1] == "records, counted with noise"


def test_data_with_a_budget_show_what_is_left_and_nothing_exact(budgeted_run: Path) -> None:
    page = Page(run_page(budgeted_run))
    assert "The lifetime budget of staff" in page.text
    left = re.search(r"Of the budget of ε = 20 at δ = 0.00001, ([0-9.]+)% is left", page.text)
    assert left is not None
    assert 0 < float(left.group(1)) < 100
    with pytest.raises(Refused, match=r"Dataset 'staff' has a budget: exact figures of it are shown to nobody, and "):
        run_page(budgeted_run, include_private=True)


def test_a_budget_that_was_set_later_counts(private_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from accountant import Budget, Ledger
    from privfair.config import Config

    url = f"sqlite:///{tmp_path}/ledger.sqlite"
    with Ledger(url) as ledger:
        ledger.set_budget("synthetic", Budget(3.0, 1e-5))
    folder = copied(private_run, tmp_path / "run")
    config = (folder / "config.toml").read_text()
    old = Config.read(folder / "config.toml").run.ledger
    assert old is not None
    (folder / "config.toml").write_text(config.replace(old, url))
    with pytest.raises(Refused, match="Dataset 'synthetic' has a budget"):
        run_page(folder, include_private=True)
    assert "Another ledger was in the place" in run_page(folder)


def test_a_run_without_privacy_shows_its_figures_and_that_nothing_covers_them(open_run: Path) -> None:
    metrics, page = metrics_of(open_run), Page(run_page(open_run))
    assert metrics["verdict"]["sentence"] in page.text
    assert page.text.index(metrics["verdict"]["sentence"]) < page.text.index("was trained")
    assert "It rests on exact counts of test records, which no ε covers." in page.text
    assert "There is no privacy guarantee. No noise, no privacy claim" in page.text
    names = ["records", "accuracy", "selection_rate", "true_positive_rate", "false_positive_rate", "mean_score"]
    groups = page.exact("Groups of sex")[1:]
    assert [row[1:] for row in groups] == [[row[n] for n in names] for row in metrics["groups"]["sex"].values()]
    assert len(run_page(open_run)) < 60_000  # bars are drawn without a script


def test_data_that_got_a_budget_since_show_none_of_them(open_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privfair.reports.run_facts.has_budget", lambda config, dataset: True)
    page = Page(run_page(open_run))
    assert "No figures were released" in page.text
    assert f"privfair report {open_run} --include-private" in page.text
    assert metrics_of(open_run)["verdict"]["sentence"] not in page.text
    assert page.values == [float(metrics_of(open_run)["bytes"][way]) for way in ("up", "down")]


def test_the_page_of_a_private_run_opens_with_its_verdict(private_run: Path) -> None:
    verdict, page = metrics_of(private_run)["verdict"], Page(run_page(private_run))
    assert verdict["basis"] == "released"
    assert page.text.index(verdict["sentence"]) < page.text.index("was trained")
    assert "counts of test records that were released with noise" in page.text


def test_exact_figures_where_they_are_asked_for(open_run: Path) -> None:
    metrics = metrics_of(open_run)
    text = run_page(open_run, include_private=True)
    page = Page(text)
    assert page.text.count("Contains figures that were not released; do not pass on") >= 2
    assert '@top-center { content: "Contains figures that were not released; do not pass on"' in text
    assert metrics["accuracy"] in page.values
    groups = page.exact("Groups of sex")[1:]
    names = ["records", "accuracy", "selection_rate", "true_positive_rate", "false_positive_rate", "mean_score"]
    assert [row[1:] for row in groups] == [[row[n] for n in names] for row in metrics["groups"]["sex"].values()]
    scores = page.exact("How the model's scores are spread")[1:]
    for column in (1, 2):
        assert sum(row[column] or 0 for row in scores) == pytest.approx(1)
    shares = page.exact("Share of each group")[-1][1:]
    assert shares == [1.0, 1.0]
    history = page.exact("Accuracy and unfairness, round by round")[1:]
    assert len(history) == 3
    assert history[-1][1] == metrics["accuracy"]
    assert "contains" not in Page(run_page(open_run)).text.lower()


def test_scores_are_left_out_where_the_data_are_others(open_run: Path, tmp_path: Path) -> None:
    metrics = metrics_of(open_run)
    folder = copied(open_run, tmp_path / "run", {**metrics, "accuracy": 0.111})
    assert "the data found are not those of the run" in run_page(folder, include_private=True)
    config = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(config.replace("people.csv", "gone.csv"))
    assert "the data or the model could not be loaded" in run_page(folder, include_private=True)


def test_names_are_shown_and_not_obeyed(open_run: Path) -> None:
    text = run_page(open_run, include_private=True)
    page = Page(text)
    for name in (*HOSTILE_GROUPS, *HOSTILE_CLIENTS):
        assert name in page.text
    assert "<script>alert(1)" not in text
    assert not [tag for tag, _ in page.tags if tag == "img"]
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    figures = [json.loads(found) for found in re.findall(r'<script type="application/json">(.*?)</script>', text)]
    assert len(figures) == 4
    assert "&lt;script&gt;alert(1)" in figures[0]["data"][0]["name"] + figures[0]["data"][1]["name"]


def test_the_ledgers_password_is_not_shown(private_run: Path) -> None:
    from privfair.config import Config
    from privfair.reports.run_facts import shown_config, without_password

    config = Config.read(private_run / "config.toml")
    tables = config.as_tables()
    tables["run"]["ledger"] = "postgresql://me:secret@host/books?password=covert"
    reported = shown_config(Config.build(tables))
    assert "secret" not in reported
    assert "covert" not in reported
    assert without_password("postgresql://me:secret@host/books") == "postgresql://me:***@host/books"


def test_who_did_not_answer_is_told(private_run: Path, tmp_path: Path) -> None:
    metrics = metrics_of(private_run)
    absent = [{"round": 1, "client": "client-2", "asked": "training", "reason": "no <answer>"},
              {"round": None, "client": "client-3", "asked": "counts", "reason": "gone"}]  # fmt: skip
    page = Page(run_page(copied(private_run, tmp_path / "run", {**metrics, "absent": absent})))
    assert page.rows("Data holders that did not respond")[1:] == [
        ["client-2", "2", "training", "no <answer>"],
        ["client-3", "before or after all rounds", "numbers of records", "gone"],
    ]
    assert "Every data holder responded" in Page(run_page(private_run)).text
    assert "Every data holder responded" not in page.text


def test_a_statement_without_a_claim_claims_nothing(private_run: Path, tmp_path: Path) -> None:
    metrics = metrics_of(private_run)
    claim = "No ε: updates left the clients without noise."
    privacy = {**metrics["privacy"], "private": False, "claim": claim, "epsilon": {"rdp": None, "pld": None}}
    page = Page(run_page(copied(private_run, tmp_path / "run", {**metrics, "privacy": privacy})))
    assert f"There is no privacy guarantee. {claim}" in page.text
    assert "A coin is right" not in page.text
    assert page.rows("ε of the whole run")[1][1:] == ["∞", "∞"]


def test_many_data_holders_that_paid_the_same_are_one_line() -> None:
    from privfair.reports.run_page import spending

    same = {f"client-{k}": {"rdp": 2.0, "pld": 1.5} for k in range(5)}
    nothing: dict[str, Any] = {"by_channel": {}, "by_group": {}}
    (table,) = spending({**nothing, "by_client": same})
    assert [(row[0], row[1].value, row[2].value) for row in table["rows"]] == [("each of the 5 data holders", 1.5, 2.0)]
    (table,) = spending({**nothing, "by_client": {**same, "client-9": {"rdp": 1.0, "pld": None}}})
    assert len(table["rows"]) == 6
    assert [cell.text for cell in table["rows"][5][1:]] == ["–", "1.000"]
    (table,) = spending({**nothing, "by_client": {"client-1": {"rdp": None, "pld": None}}})
    assert [cell.text for cell in table["rows"][0][1:]] == ["∞", "∞"]


def test_of_several_attributes_the_one_furthest_apart_is_named(two_attributes_run: Path) -> None:
    metrics = metrics_of(two_attributes_run)
    own = {name: about["unfairness"]["statistical_parity"] for name, about in metrics["by_attribute"].items()}
    assert own["race"] > own["sex"] + 0.1
    page = Page(run_page(two_attributes_run, include_private=True))
    low, high = metrics["by_attribute"]["race"]["confidence_intervals"]["statistical_parity"]
    reported = f"{100 * own['race']:.1f} percentage points (95% interval {100 * low:.1f} to {100 * high:.1f} points)"
    assert (
        "Between the groups of race (a, b, c), of all sensitive attributes the one with the largest difference, the "
        f"share of positive decisions differs by at most {reported}."
    ) in page.text
    assert f"Statistical parity by race, 95% interval {100 * low:.1f} to {100 * high:.1f} points" in page.text
    rows = {row[0]: row for row in page.rows("Over all sensitive attributes")}
    assert rows["Statistical parity"][4] == "race"
    assert rows["MMD²"][4] == "all, added up"
    for name in ("sex", "race"):
        caption = f"Largest differences between groups of {name}."
        shown_gaps = {row[0]: value[2] for row, value in zip(page.rows(caption), page.exact(caption), strict=True)}
        assert shown_gaps["Statistical parity"] == own[name]
        assert "MMD²" not in shown_gaps  # it is added up over all attributes
    assert "Unfairness is the largest over all sensitive attributes." in page.text


def test_a_run_of_one_attribute_is_told_as_before(open_run: Path) -> None:
    page = Page(run_page(open_run, include_private=True))
    assert "all sensitive attributes" not in page.text
    assert "MMD²" in [row[0] for row in page.rows("Largest differences between groups of sex")]


def test_a_rate_that_does_not_exist_is_a_dash(two_attributes_run: Path) -> None:
    row = metrics_of(two_attributes_run)["groups"]["race"]["c"]
    assert row["false_positive_rate"] is None
    assert row["true_positive_rate"] is not None
    page = Page(run_page(two_attributes_run, include_private=True))
    found = next(row for row in page.rows("Groups of race") if row[0] == "c")
    assert found[page.rows("Groups of race")[0].index("… of negative labels (FPR)")] == "–"


def test_runs_of_older_versions_do_not_name_a_wrong_attribute(two_attributes_run: Path, tmp_path: Path) -> None:
    metrics = metrics_of(two_attributes_run)
    del metrics["unfairness_of"]
    page = Page(run_page(copied(two_attributes_run, tmp_path / "run", metrics), include_private=True))
    assert "differs by at most" not in page.text
    assert [row[0] for row in page.rows("Over all sensitive attributes")[1:]] == ["MMD²"]
    one = page.exact("Largest differences between groups of sex.")
    assert metrics["by_attribute"]["sex"]["unfairness"]["statistical_parity"] in [row[2] for row in one]
