"""The final figures of a run: what `metrics.json` holds and `privfair train` prints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from privfair.clients.task import TaskKind
from privfair.datasets.columns import OTHER
from privfair.experiment import RunOutcome
from privfair.fairness.degenerate import exact_warnings, parameter_warnings, released_warnings
from privfair.fairness.gaps import headline
from privfair.fairness.metrics import (
    Predicted,
    accuracy,
    confidence_intervals,
    group_table,
    notion_gap,
    root_mean_squared_error,
    unfairness,
)
from privfair.fairness.released import released_figures
from privfair.interfaces import ServerState
from privfair.privacy.plan_report import unseen
from privfair.privacy.statement import statement
from privfair.randomness import stream
from privfair.trained import weights_digest
from privfair.versions import installed

NO_FAIRNESS: dict[str, Any] = {
    "unfairness": {}, "unfairness_of": {}, "confidence_intervals": {}, "by_attribute": {}, "groups": {},
}  # fmt: skip


def summarise(outcome: RunOutcome, out: str | None) -> dict[str, Any]:
    """Everything as plain values; a figure that is not finite is None."""
    setting = outcome.setting
    schema, config, last = setting.federation.schema, setting.config, outcome.history[-1]
    task = TaskKind.of(schema)
    summary: dict[str, Any] = {
        **_figures(outcome),
        "warnings": _warnings(outcome),
        "objective": {k: v for k, v in last.items() if k.startswith(("train_", "test_"))},
        "privacy": _privacy(outcome),
        "aggregation": {"scheme": config.scheme, "quantised": config.whole_sums},
        "bytes": {"up": setting.backend.bytes_up, "down": setting.backend.bytes_down},
        "engine": config.run.engine,
        "notion": setting.notion,
        "seconds": {"total": outcome.seconds},
        "rounds": outcome.state.round,
        "unseen_groups": [] if setting.private is None else unseen(outcome.state.terms, setting.private.planner.cells),
        "absent": absences(outcome.state, [c.name for c in setting.federation.clients]),
        "data": {
            "name": setting.federation.name,
            "clients": _sizes(outcome),
            # notes tell exact numbers of records
            "notes": [] if setting.evaluator is None else [*setting.federation.notes, *_other_notes(outcome)],
            "schema_inferred": schema.inferred,
        },
        "model": {
            "name": config.model.name,
            "features": list(schema.features),
            "task": schema.task,
            "range": [task.low, task.high],
            "parameters": int(setting.replica.parameters.size),
            "digest": weights_digest(setting.model.module.state_dict()),
            "encoder": setting.federation.encoder.to_json() if setting.federation.encoder else None,
        },
        "versions": {name: found for name, found in installed().items() if found},
        "out": out,
    }
    finite: dict[str, Any] = _finite(summary)
    return finite


def absences(state: ServerState, names: Sequence[str]) -> list[dict[str, Any]]:
    """Who did not answer, in which round (None: before the first or after the last), what it was asked, and why."""
    return [{**asdict(absence), "client": names[absence.client]} for absence in state.absent]


def _figures(outcome: RunOutcome) -> dict[str, Any]:
    """Accuracy and unfairness: exact, or from released counts where the data have a budget."""
    setting = outcome.setting
    schema = setting.federation.schema
    released = None
    noise = outcome.state.terms.evaluation
    if outcome.released is not None and noise is not None:
        rng = stream(setting.config.run.seed, "released")
        released = released_figures([reply.confusion for reply in outcome.released], schema, noise, rng)
    if setting.evaluator is None:
        return {"accuracy": None, **NO_FAIRNESS, **(released or {}), "rmse": None, "figures": "released"}
    test = setting.evaluator.predicted("test")
    return {
        "accuracy": accuracy(test, schema),
        "rmse": root_mean_squared_error(test) if schema.task == "regression" else None,
        **_fairness(outcome, test),
        "figures": "exact",
        "released": released,
    }


def _warnings(outcome: RunOutcome) -> list[str]:
    """Why the model is of no use, if so; of a private run only what its released counts and the model itself show."""
    setting = outcome.setting
    if setting.private is None and setting.evaluator is not None:
        loss = outcome.history[-1].get("train_loss")
        found = exact_warnings(setting.evaluator.predicted("test"), setting.federation.schema, loss)
        return found or parameter_warnings(setting.model.module)
    noise, found = outcome.state.terms.evaluation, parameter_warnings(setting.model.module)
    if not found and outcome.released and noise is not None:
        found = released_warnings([reply.confusion for reply in outcome.released], noise)
    return found


def _privacy(outcome: RunOutcome) -> dict[str, Any]:
    """The statement of a private run; of another, that there is none."""
    setting = outcome.setting
    private = setting.private
    if private is not None:
        return statement(
            setting.config,
            outcome.state.terms,
            private.books,
            private.planner,
            setting.federation.schema,
            plan=setting.server.plan,
            prices=private.desk.prices,
            absent=bool(outcome.state.absent),
        )
    return {
        "private": False,
        "claim": "No noise, no privacy claim: scores, updates and counts leave the clients as they are.",
        "epsilon": {"rdp": None, "pld": None},
        "delta": None,
        "adjacency": None,
        "by_client": {},
        "by_group": {},
        "by_channel": {},
    }


def _sizes(outcome: RunOutcome) -> dict[str, dict[str, int]]:
    """Records of every client: exact ones, or the released count where the data have a budget."""
    setting = outcome.setting
    if setting.evaluator is None:
        counts = outcome.state.terms.records
        return {c.name: {"released": int(n)} for c, n in zip(setting.federation.clients, counts, strict=True)}
    return {c.name: {"train": len(c.train), "test": len(c.test)} for c in setting.federation.clients}


def _fairness(outcome: RunOutcome, test: Predicted) -> dict[str, Any]:
    """Unfairness and its intervals, the largest over all attributes and those of each; tables by group."""
    setting = outcome.setting
    schema, last, cells = setting.federation.schema, outcome.history[-1], setting.cells
    if not len(test.records):
        return dict(NO_FAIRNESS)
    rng = stream(setting.config.run.seed, "bootstrap")
    notion = cells.notion.name
    by_attribute: dict[str, dict[str, Any]] = {}
    groups: dict[str, Any] = {}
    for a, attribute in enumerate(schema.sensitive):
        intervals = confidence_intervals(test, schema, rng, attribute=a)
        gaps = unfairness(test, schema, a)
        if notion not in gaps:  # on sets that the data or the user declare: without an interval
            gaps[notion] = notion_gap(test, schema, cells, a)
        by_attribute[attribute.name] = {"unfairness": gaps, "confidence_intervals": intervals.figures}
        groups[attribute.name] = {
            group: {**row, "intervals": intervals.groups.get(group, {})}
            for group, row in group_table(test, schema, a).items()
        }
    run = headline(by_attribute)
    first = by_attribute[schema.sensitive[0].name]["confidence_intervals"]
    right = {"accuracy": first["accuracy"]} if "accuracy" in first else {}
    return {
        # the same sums as in the history, to the last bit; MMD² is added up over all attributes
        "unfairness": {**run["unfairness"], notion: last.get(notion), "mmd2": last.get("test_mmd2")},
        "unfairness_of": run["unfairness_of"],
        "confidence_intervals": {**right, **run["confidence_intervals"]},
        "by_attribute": by_attribute,
        "groups": groups,
    }


def _other_notes(outcome: RunOutcome) -> list[str]:
    """A note where records without a declared group, who are no group that anybody named, set the figure of the run."""
    setting = outcome.setting
    if setting.evaluator is None:
        return []
    schema, test, notion = setting.federation.schema, setting.evaluator.predicted("test"), setting.cells.notion.name
    notes = []
    for a, attribute in enumerate(schema.sensitive):
        if OTHER not in attribute.values or not len(test.records):
            continue
        named = np.flatnonzero(test.records.groups[:, a] != attribute.values.index(OTHER))
        unnamed = len(test.records) - len(named)
        rest = Predicted(test.records.take(named), test.predictions[named], test.losses[named], test.scores[named])
        gap = unfairness(test, schema, a).get(notion)
        without = unfairness(rest, schema, a).get(notion) if len(named) else None
        if unnamed and gap is not None and without is not None and without < gap:
            notes.append(
                f'{attribute.name}: the group "{OTHER}" of {unnamed} test records sets the largest gap. Without it, '
                f"{notion} is {without:.4f} instead of {gap:.4f}."
            )
    return notes


def _finite(value: Any) -> Any:
    """The same with None for numbers that JSON has no word for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
