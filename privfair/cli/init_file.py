"""The commented configuration that `privfair init` writes: it runs as it stands, and says what a person must check."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

from privfair.datasets.guess import GROUPS, Guess
from privfair.datasets.profile import RARE

PUBLIC = """
# ── What is public about the columns ────────────────────────────────────────────────────────────────────────────
# As this file stands, groups, categories and ranges are read off the records. That is for simulations only: they tell
# something about the records that no ε covers, privfair claims no privacy for such a run, and it refuses one on data
# with a lifetime budget.
# What follows was READ OFF THE DATA too (ranges rounded, values of fewer than {rare} records left out). It is NOT
# public knowledge. Before the data get a budget (privfair budget set NAME …), replace every range and list by what is
# known without looking at the records: a questionnaire, a code book, a law. Then take away the "# ", and delete the
# lines marked (*) above.
"""
REST = """
[model]
name = "logistic"              # "mlp" with hidden = [16]; a model of your own: "package.module:factory"

[fairness]
notion = "statistical_parity"  # which gap between groups is to be small; CHECK that it is the one you mean:
{notions}
lambda = 1.0                   # strength: 0 does nothing; try several with privfair sweep

[federation]
rounds = 100
local_epochs = 1
batch_size = 100
learning_rate = 0.05

# Without this section nothing is protected. It needs the declared columns above for its claim to hold.
# [privacy]
# epsilon = 3.0                # of everything that leaves a client, for every record of it
# delta = 1e-5                 # well below 1 / number of records
# dataset = "NAME"             # the name under which the ledger keeps the budget of these data
# evaluation = "laplace"       # noisy accuracy and unfairness at the end: the only ones of data with a budget

[run]
seed = 0
"""
NOTIONS = {
    "binary": "                               # equal_opportunity, equalized_odds, predictive_equality, risk_parity",
    "regression": "                               # or risk_parity; the others are for labels of 0 and 1",
}


def quoted(text: str) -> str:
    """The text as a TOML string on one line, whatever is in it; fit for a comment, too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def key(name: str) -> str:
    """The name as a TOML key."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else quoted(name)


def configuration(path: str, options: Mapping[str, str], guess: Guess) -> str:
    """The whole file; `options` say how the table is written."""
    lines = [
        f"# privfair train on {quoted(path)}, written by privfair init after looking at {guess.records} records.",
        "# Everything marked GUESS was guessed by names and values. CHECK it: a wrong column gives a wrong answer.",
        "",
        "[data]",
        'name = "csv"',
        f"path = {quoted(path)}  # seen from the folder in which privfair train is started",
    ]
    lines += [f"{option} = {quoted(value)}" for option, value in options.items()]
    lines += [*_roles(guess), "", *_features(guess), *PUBLIC.format(rare=RARE).splitlines(), *_schema(guess)]
    return "\n".join(lines) + "\n" + REST.format(notions=NOTIONS[guess.task])


def _roles(guess: Guess) -> Iterable[str]:
    yield f"label = {quoted(guess.label)}  # {_why(guess, 'label')}"
    if guess.task == "regression":
        yield 'task = "regression"  # (*) GUESS: the label has more than two values, all numbers'
    elif guess.positive is not None:
        yield f"positive = {quoted(guess.positive)}  # (*) GUESS: the label that counts as 1; every other one is 0"
    yield f"sensitive = {quoted(guess.sensitive)}  # {_why(guess, 'sensitive')}: the groups to treat alike; or a list"
    if guess.columns[guess.sensitive].missing:
        yield '# unknown = "drop"  # (*) CHECK: records without it are a group of their own, "other"; this drops them'
    if guess.client is not None:
        yield f"client = {quoted(guess.client)}  # {_why(guess, 'client')}: who holds the record"
    else:
        yield f'# client = "COLUMN"  # {guess.reasons["client"]}: without it there is one client, "all"'
    if guess.identity is not None:
        yield f"# id = {quoted(guess.identity)}  # if it names a person: keeps all of a person's records on one side"
    if guess.test is not None:
        yield f"# test = {quoted(guess.test)}  # if 1 (or true, yes, test) marks the test records"


def _why(guess: Guess, role: str) -> str:
    reason = guess.reasons[role]
    return "GUESS by its name" if reason == "guessed by its name" else reason.replace("guessed:", "GUESS:")


def _features(guess: Guess) -> Iterable[str]:
    yield "# GUESS. Take out what is known only after the outcome, or computed from it."
    yield "features = ["
    for name in guess.features:
        column = guess.columns[name]
        kind = "numbers" if column.kind == "numeric" else f"{column.distinct} categories"
        if column.words & set(GROUPS):
            kind += "; CHECK: may the decision depend on it? Otherwise leave it out, or name it under sensitive, too"
        yield f"    {quoted(name)},  # {kind}"
    yield "]"
    for name, reason in guess.left_out.items():
        yield f"# left out: {quoted(name)}: {reason}"


def _schema(guess: Guess) -> Iterable[str]:
    """The declaration of the columns, as comments."""
    yield "# [data.schema]"
    yield f"# task = {quoted(guess.task)}"
    if guess.positive is not None:
        yield f"# positive = {quoted(guess.positive)}"
    label = guess.columns[guess.label]
    if guess.task == "regression" and label.range is not None:
        yield f"# label_range = {_pair(label.range)}  # FROM THE DATA: replace"
    numeric = [name for name in guess.features if guess.columns[name].range is not None]
    if numeric:
        yield "# [data.schema.numeric]"
        for name in numeric:
            yield f"# {key(name)} = {_pair(guess.columns[name].range or (0, 1))}  # FROM THE DATA: replace"
    yield "# [data.schema.categories]"
    for name in (name for name in guess.features if name not in numeric):
        yield f'# {key(name)} = [{_values(guess, name)}]  # FROM THE DATA: replace; all other values count as "other"'
    groups, rest = f"[{_values(guess, guess.sensitive)}]", 'all other values count as "other"'
    if guess.columns[guess.sensitive].values:
        groups, rest = f'{{ values = {groups}, unknown = "drop" }}', "records in no group of these are left out"
    yield f"# {key(guess.sensitive)} = {groups}  # FROM THE DATA: replace; {rest}"


def _values(guess: Guess, name: str) -> str:
    return ", ".join(map(quoted, guess.columns[name].values)) or '"VALUE"'


def _pair(ends: tuple[float, float]) -> str:
    return "[" + ", ".join(repr(int(end)) if end == int(end) and abs(end) < 1e15 else repr(end) for end in ends) + "]"
