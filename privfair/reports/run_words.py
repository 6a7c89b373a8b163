"""A run in sentences, tiles and short tables: what was trained on what, how, and what went over the wire."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from privfair.privacy.books import dataset_name
from privfair.reports.guessing import shown_guesses
from privfair.reports.numbers import Cell, count, delta, plural, shown, size
from privfair.reports.run_facts import RunFacts
from privfair.reports.run_fairness import NOTIONS, Fairness, words_of

METHODS = {
    "mmd_fedavg": "fairness tracking: all data holders follow one measure of unfairness over all records",
    "fedavg": "plain federated averaging, without a fairness term",
    "local_fairness": "fairness of each data holder for itself",
    "centralized": "all records in one place, for comparison",
    "agnostic": "agnostic federated learning: the worst-off data holder counts most",
    "fairfed": "FairFed: data holders are weighted by their own unfairness",
    "fedfb": "FedFB: records are weighted by group",
}
MODELS = {"logistic": "A logistic regression", "mlp": "A small neural network"}
ASKED = {
    "counts": "numbers of records",
    "scores": "scores",
    "training": "training",
    "measures": "measures",
    "evaluation": "evaluation",
}


@dataclass(frozen=True)
class Tile:
    """A figure at a glance."""

    what: str
    value: str
    more: str = ""
    exact: float | None = None
    words: bool = False  # smaller, where it is no number


def subject(facts: RunFacts) -> str:
    """The name of the data, as the ledger has it or would have it."""
    return dataset_name(facts.config, str(facts.released["data"]["name"]))


def summary(facts: RunFacts, fairness: list[Fairness], epsilon: float | None) -> list[str]:
    """The whole report in a few sentences."""
    found = [_trained(facts)]
    if fairness:
        best = fairness[0]
        right = f" It decides right for {best.accuracy.text} of the test records." if best.accuracy else ""
        found.append(f"{best.sentence}{right}{'' if best.kind == 'released' else ' (Exact figures, not released.)'}")
    else:
        found.append(
            "How often it is right, and how differently it treats groups, was not released: it is not in this report."
        )
    privacy = facts.released["privacy"]
    if epsilon is None:
        return [*found, f"There is no privacy guarantee. {privacy['claim']}"]
    added, whole = privacy["adjacency"] == "add-or-remove", privacy["unit"] == "client"
    guess = "whether a certain record took part" if added else "which one of two records of the same group took part"
    if whole:
        guess = "which one of two sets of records a data holder has"
    return [
        *found,
        "What anybody who sees every message of this run and the model can learn about "
        f"{'one data holder, with all of its records,' if whole else 'one record'} is limited by "
        f"ε = {shown(epsilon)}, δ = {delta(privacy['delta'])}: somebody who guesses {guess}, and holds both for "
        f"equally likely, is right in at most {shown_guesses(epsilon, privacy['delta'])} of cases. A coin is right in "
        "50%.",
    ]


def _trained(facts: RunFacts) -> str:
    released = facts.released
    data = released["data"]
    known = [number for number in data["clients"].values() if number is not None]
    records = ""
    if known:
        public = data["counts"] == "public"
        told = f"{count(sum(known))} records (their number was declared public)" if public else (
            f"about {count(sum(known))} records (counted with noise)"
        )  # fmt: skip
        records = f"{told} of "
    model = MODELS.get(released["model"]["name"], f"The model {released['model']['name']}")
    pooled = facts.config.federation.method == "centralized"
    where = "For comparison, all records were in one place." if pooled else "The records stayed where they were."
    return (
        f"{model} was trained on {records}{plural(len(data['clients']), 'data holder')} in "
        f"{plural(released['rounds'], 'round')}. {where}"
    )


def tiles(facts: RunFacts, fairness: list[Fairness], epsilon: float | None) -> list[Tile]:
    """A few figures at a glance."""
    found = []
    if fairness:
        best = fairness[0]
        notion = words_of(facts.notion)[0]
        row = next((row for row in best.largest if row[0] == notion), None)
        if row is not None:
            value = row[2].text.replace(" percentage points", " pp")
            of = f" by {row[4]}" if len(best.attributes) > 1 and row[4] else ""
            more = f"{row[0]}{of}{f', 95% interval {row[3]}' if row[3] else ''}"
            found.append(Tile("Largest difference between groups", value, more, row[2].value))
        if best.accuracy is not None:
            remark = best.accuracy.remark
            more = f"95% interval {remark}" if remark else ""
            found.append(Tile("Right decisions", best.accuracy.text, more, best.accuracy.value))
    if epsilon is not None:
        more = f"at δ = {delta(facts.released['privacy']['delta'])}; smaller is better"
        found.append(Tile("Privacy cost of the run, ε", shown(epsilon), more, epsilon))
    else:
        more = "the claim does not hold, see below" if facts.private else "trained without noise"
        found.append(Tile("Privacy cost of the run", "no limit", more, words=True))
    scheme = facts.released["aggregation"]["scheme"]
    if scheme == "plain":
        found.append(Tile("Model updates", "not encrypted", "the server saw each of them", words=True))
    else:
        found.append(Tile("Model updates", "encrypted", f"the server added what it could not read ({scheme.upper()})",
                          words=True))  # fmt: skip
    return found


def settings(facts: RunFacts) -> dict[str, str]:
    """What was done, for people."""
    config, released = facts.config, facts.released
    strength = config.fairness.strength
    title, compared = words_of(facts.notion)
    task = "yes or no" if released["model"]["task"] == "binary" else "a number"
    found = {
        "Data": subject(facts),
        "Data holders": count(len(released["data"]["clients"])),
        "Model": f"{released['model']['name']}, {plural(released['model']['parameters'], 'parameter')}; says {task}",
        "Method": METHODS.get(config.federation.method, config.federation.method),
        "Fairness notion": f"{title}: {compared}" if facts.notion in NOTIONS else title,
        "Weight of fairness": f"λ = {strength:g}",
        "Rounds": count(released["rounds"]),
        "Engine": released["engine"],
    }
    if config.federation.method in ("fedavg", "agnostic", "fedfb"):
        del found["Weight of fairness"]
    return found


def wire(facts: RunFacts) -> list[list[Any]]:
    """Bytes up and down: in all, and for each data holder and round."""
    released = facts.released
    each = max(1, len(released["data"]["clients"]) * released["rounds"])
    return [
        [told, Cell(size(released["bytes"][way]), released["bytes"][way]), size(released["bytes"][way] / each)]
        for way, told in (("up", "from data holders to the server"), ("down", "from the server to data holders"))
    ]


def absences(facts: RunFacts) -> list[list[str]]:
    """Who did not answer: when, what it was asked for, and why."""
    return [
        [
            str(absence["client"]),
            "before or after all rounds" if absence["round"] is None else str(absence["round"] + 1),
            ASKED.get(absence["asked"], absence["asked"]),
            str(absence["reason"]),
        ]
        for absence in facts.released["absent"]
    ]


def holders(facts: RunFacts) -> tuple[list[str], list[list[Any]]]:
    """(columns, rows): the data holders, with numbers of records as far as they may be shown."""
    data = facts.released["data"]
    columns = ["data holder"]
    known = any(number is not None for number in data["clients"].values())
    if known:
        columns.append("records, declared public" if data["counts"] == "public" else "records, counted with noise")
    exact = facts.exact["data"]["clients"] if facts.exact is not None else {}
    columns += ["exact: for training", "exact: for tests"] if exact else []
    rows = []
    for name, number in data["clients"].items():
        row: list[Any] = [name]
        if known:
            row.append(Cell("–") if number is None else Cell(count(number), number))
        if exact:
            row += [Cell(count(exact[name][part]), exact[name][part]) for part in ("train", "test")]
        rows.append(row)
    return columns, rows
