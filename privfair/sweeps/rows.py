"""One line per run: the columns of results.csv, and how a finished run becomes a line."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from accountant.errors import InputError
from privfair.experiment import RunOutcome
from privfair.privacy.statement import total_epsilon

SCHEMA = 1
NOTIONS = ("statistical_parity", "equal_opportunity", "predictive_equality", "equalized_odds", "risk_parity")
TEXT = ("series", "method", "parameter", "status", "reason", "notion", "engine")
WHOLE = ("schema", "seed", "rounds", "bytes_up", "bytes_down")
COLUMNS: tuple[str, ...] = (
    "schema", "series", "method", "parameter", "value", "lambda", "seed", "epsilon_target", "status", "reason",
    "accuracy", "rmse", "notion", "unfairness", *(f"unfairness_{name}" for name in NOTIONS), "mmd2",
    "train_loss", "train_mmd2", "train_objective", "test_loss", "test_objective",
    "baseline_accuracy", "baseline_rmse", "epsilon_pld", "epsilon_rdp", "delta",
    "rounds", "bytes_up", "bytes_down", "seconds", "engine",
)  # fmt: skip
HISTORY: tuple[str, ...] = (
    "schema", "series", "value", "seed", "epsilon_target", "round", "accuracy", "unfairness",
    "train_loss", "train_mmd2", "train_objective", "test_loss", "test_mmd2", "test_objective",
)  # fmt: skip

Row = dict[str, Any]


class Ended:
    """Runs by how they ended."""

    rows: tuple[Row, ...]

    @property
    def done(self) -> list[Row]:
        """The rows with a result."""
        return [row for row in self.rows if row["status"] == "done"]

    @property
    def failed(self) -> list[Row]:
        """The rows without one."""
        return [row for row in self.rows if row["status"] != "done"]


def finished_row(outcome: RunOutcome) -> Row:
    """The figures of a run, those of `privfair train --json`; `history` holds its lines, if it kept several."""
    setting, last = outcome.setting, outcome.history[-1]
    row: Row = {
        "status": "done",
        "reason": "",
        "accuracy": last.get("accuracy"),
        "rmse": last.get("rmse"),
        "notion": setting.notion,
        "unfairness": last.get(setting.notion),
        **{f"unfairness_{name}": last.get(name) for name in NOTIONS},
        "mmd2": last.get("test_mmd2"),
        **{key: last.get(key) for key in ("train_loss", "train_mmd2", "train_objective", "test_loss")},
        "test_objective": last.get("test_objective"),
        **_baseline(outcome),
        **_spent(outcome),
        "rounds": outcome.state.round,
        "bytes_up": setting.backend.bytes_up,
        "bytes_down": setting.backend.bytes_down,
        "seconds": outcome.seconds,
        "engine": setting.config.run.engine,
    }
    if setting.config.run.evaluate_every < setting.config.federation.rounds:
        row["history"] = [{**line, "unfairness": line.get(setting.notion)} for line in outcome.history]
    return row


def failed_row(error: BaseException | str) -> Row:
    """The row of a run that gave no result, with its reason on one line."""
    text = str(error) or type(error).__name__
    if isinstance(error, BaseException) and not isinstance(error, InputError):
        text = f"{type(error).__name__}: {text}"
    return {"status": "failed", "reason": " ".join(text.split())}


def as_text(row: Mapping[str, Any], columns: tuple[str, ...]) -> list[str]:
    """The fields of a line; numbers so that they are read back exactly."""
    return [_field(SCHEMA if name == "schema" else row.get(name)) for name in columns]


def from_text(fields: Mapping[str, str]) -> Row:
    """What `as_text` wrote; a field that is no number where one belongs is a ValueError."""
    row: Row = {}
    for name, text in fields.items():
        if name in TEXT:
            row[name] = text
        elif text == "":
            row[name] = None
        else:
            row[name] = int(text) if name in (*WHOLE, "round") else float(text)
    return row


def _field(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float | np.floating):
        return "" if math.isnan(value) else repr(float(value))
    return " ".join(str(value).split())


def _baseline(outcome: RunOutcome) -> Row:
    """What a constant answer reaches on the test records: the floor that a frontier is measured from."""
    federation = outcome.setting.federation
    if outcome.setting.evaluator is None:
        return {}
    labels = federation.pooled_test().labels
    if not len(labels):
        return {}
    if federation.schema.task == "binary":
        positive = float(np.mean(labels == 1))
        return {"baseline_accuracy": max(positive, 1 - positive)}
    return {"baseline_rmse": float(np.std(labels))}


def _spent(outcome: RunOutcome) -> Row:
    """ε by both methods, from the ledger's rows; nothing for a run without privacy."""
    setting, private = outcome.setting, outcome.setting.private
    if private is None:
        return {}
    spends = [spend for _, spend in private.books.ledger.spends(run=private.books.run)]
    plan, prices = setting.server.plan, private.desk.prices
    total = total_epsilon(setting.config, outcome.state.terms, spends, plan=plan, prices=prices)
    epsilon = {"epsilon_rdp": total.rdp, "epsilon_pld": total.pld}
    claim = outcome.state.terms.claim
    delta = setting.config.privacy.delta if claim is None else claim.delta
    return {**{name: value if math.isfinite(value) else None for name, value in epsilon.items()}, "delta": delta}
