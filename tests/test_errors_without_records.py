"""Errors never contain records: a table passed by mistake is named by its type and size, wherever it is passed."""

from __future__ import annotations

import enum
import inspect
import pickle
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import accountant
import privfair
import privfair.datasets
import privfair.kernels
from accountant.errors import InputError, NotThere, described
from privfair.config import Config

NAME, NUMBER = "Zaphod-Beeblebrox", 4242424217
CANARIES = (NAME, str(NUMBER), "4242424217.0", "4.242424", "4_242")
ROWS = [{"name": NAME, "income": NUMBER}, {"name": NAME, "income": NUMBER + 1}]
FRAME = pd.DataFrame(ROWS)
TABLES = {
    "frame": FRAME,
    "series": FRAME["name"],
    "numbers": FRAME["income"],
    "array": FRAME.to_numpy(),
    "floats": np.array([[NUMBER, NUMBER]] * 3, dtype=float),
    "texts": np.array([NAME, NAME]),
    "rows": ROWS,
    "tuples": [(NAME, NUMBER)],
    "row": (NAME, NUMBER),
    "columns": {"name": [NAME], "income": [NUMBER]},
    "set": {NAME},
    "tensor": torch.full((3,), float(NUMBER)),
    "bytes": NAME.encode(),
    "file": f"name,income\n{NAME},{NUMBER}\n" * 40,
}
MODULES = (privfair, privfair.kernels, privfair.datasets, accountant)


def public() -> Iterator[Any]:
    for module in MODULES:
        for name in sorted(set(getattr(module, "__all__", dir(module)))):
            thing = getattr(module, name)
            own = getattr(thing, "__module__", "").partition(".")[0] in ("privfair", "accountant")
            kind = isinstance(thing, type) and issubclass(thing, enum.Enum)  # Python's own lookup, which nobody calls
            if callable(thing) and own and not kind and not name.startswith("_"):
                yield pytest.param(thing, id=f"{module.__name__}.{name}")


def calls(thing: Callable[..., Any], table: Any) -> Iterator[Callable[[], Any]]:
    """The table as each parameter alone (others: 1, a harmless text, or itself) and as all of them."""
    try:
        parameters = [
            p for p in inspect.signature(thing).parameters.values() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        ]
    except ValueError:
        return
    needed = [p.name for p in parameters if p.default is p.empty]
    for parameter in parameters:
        for filler in (1, "text", table) if needed else (table,):
            arguments = dict.fromkeys(needed, filler) | {parameter.name: table}
            positional = [
                arguments.pop(p.name) for p in parameters if p.kind is p.POSITIONAL_ONLY and p.name in arguments
            ]
            yield lambda positional=positional, arguments=arguments: thing(*positional, **arguments)
    if any(p.kind is p.VAR_KEYWORD for p in inspect.signature(thing).parameters.values()):
        for section in ("data", "fairness", "privacy", "run", "other"):
            yield lambda section=section: thing(**{section: table})


@pytest.mark.parametrize("table", [pytest.param(table, id=name) for name, table in TABLES.items()])
@pytest.mark.parametrize("thing", list(public()))
def test_no_error_of_a_public_function_contains_a_record(thing, table, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for call in calls(thing, table):
        try:
            call()
        except Exception as error:  # noqa: BLE001  whatever it is, it must not have the records in it
            reported = f"{error} {error.args if isinstance(error, InputError) else ''}"
            kind = type(error)
        else:
            continue
        assert not any(canary in reported for canary in CANARIES), (kind, reported)


@pytest.mark.parametrize("table", [pytest.param(table, id=name) for name, table in TABLES.items()])
def test_what_was_found_is_described(table) -> None:
    error = InputError("x", "must be a number", table, "Give one.")
    assert not any(canary in f"{error} {error!r} {error.args} {error.found} {error.found!r}" for canary in CANARIES)
    assert str(error).startswith("x must be a number; found a ")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert repr(again.found) == repr(error.found)


@pytest.mark.parametrize(
    ("value", "reported"),
    [
        (FRAME, "found a value of type DataFrame of shape (2, 2)."),
        (FRAME.to_numpy(), "found a value of type ndarray of shape (2, 2)."),
        ([1, 2, 3], "found a value of type list of length 3."),
        (dict, "found the type dict."),
        ("x" * 501, "found a text of 501 characters."),
        pytest.param(10**5000, "found a whole number of about 5,001 digits.", id="digits"),
        (object(), "found a value of type object."),
    ],
)
def test_types_and_sizes_are_told(value, reported) -> None:
    assert str(InputError("x", "must be", value)).endswith(reported)


SINGLE = [None, True, 3, -2.5, float("nan"), "text", "", 10**39, np.float64(2), Decimal(1), Path("a")]


@pytest.mark.parametrize("value", SINGLE)
def test_single_values_are_shown(value) -> None:
    assert described(value) is value
    assert str(NotThere("x", "must be", value)) == f"x must be; there is none at {value!r}."


@pytest.mark.parametrize("table", [pytest.param(table, id=name) for name, table in TABLES.items()])
@pytest.mark.parametrize("key", ["fairness.lambda", "fairness.notion", "federation.rounds", "privacy.score_range"])
def test_configurations_do_not_echo_what_they_got(table, key) -> None:
    section, _, name = key.partition(".")
    for build in (lambda: Config.build({section: {name: table}}), lambda: Config(**{section: {name: table}})):
        reported = ""
        try:
            build()  # two numbers are a range, however they are kept, and a text may name a notion
        except ValueError as error:
            reported = str(error)
        assert not any(canary in reported for canary in CANARIES)
