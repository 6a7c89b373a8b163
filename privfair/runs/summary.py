"""The final figures of a run: what `metrics.json` holds and `privfair train` prints."""

from __future__ import annotations

from typing import Any

import numpy as np

from privfair.channels.evaluation import EVALUATION
from privfair.datasets.columns import OTHER
from privfair.fairness.metrics import (
    Predicted,
    accuracy,
    confidence_intervals,
    decisions,
    exact_warnings,
    group_table,
    headline,
    notion_gap,
    parameter_warnings,
    released_warnings,
    root_mean_squared_error,
    unfairness,
)
from privfair.fairness.released import released_figures, released_verdict, reported
from privfair.fairness.tracking import out_of_reach
from privfair.fairness.verdict import impossible, interval, verdict
from privfair.mechanisms.entropy import stream
from privfair.models import TaskKind, exported
from privfair.numbers import finite
from privfair.privacy.plan_report import unseen, why_no_verdict
from privfair.privacy.statement import statement
from privfair.runs.folder import weights_digest
from privfair.runs.loop import RunOutcome, absences
from privfair.util import installed

NO_FAIRNESS: dict[str, Any] = {
    "unfairness": {}, "unfairness_of": {}, "confidence_intervals": {}, "by_attribute": {}, "groups": {},
}  # fmt: skip


def summarise(outcome: RunOutcome, out: str | None) -> dict[str, Any]:
    """The metrics of a run as plain values; a figure that is not finite is None."""
    simulation = outcome.simulation
    schema, config, last = simulation.federation.schema, simulation.config, outcome.history[-1]
    task, warnings = TaskKind.of(schema), _warnings(outcome)
    verdict = _verdict(outcome, warnings)
    summary: dict[str, Any] = {
        **_figures(outcome),
        "warnings": warnings,
        "verdict": verdict,
        **_target(outcome, verdict),
        "objective": {k: v for k, v in last.items() if k.startswith(("train_", "test_"))},
        "privacy": _privacy(outcome),
        "aggregation": {"scheme": config.scheme, "quantised": config.whole_sums},
        "bytes": {"up": simulation.backend.bytes_up, "down": simulation.backend.bytes_down},
        "engine": config.run.engine,
        "notion": simulation.notion,
        "seconds": {"total": outcome.seconds},
        "rounds": outcome.state.round,
        "unseen_groups": [] if simulation.gateway is None else unseen(outcome.state.release_plan, simulation.cells),
        "absent": absences(outcome.state, [c.name for c in simulation.federation.clients]),
        "data": {
            "name": simulation.federation.name,
            "clients": _sizes(outcome),
            # notes contain exact numbers of records
            "notes": [] if simulation.evaluator is None else [*simulation.federation.notes, *_other_notes(outcome)],
            "schema_inferred": schema.inferred,
        },
        "model": {
            "name": config.model.name,
            "features": list(schema.features),
            "task": schema.task,
            "range": [task.low, task.high],
            "parameters": int(simulation.replica.parameters.size),
            "digest": weights_digest(exported(simulation.model.module, outcome.state.release_plan.scaling)),
            "encoder": simulation.federation.encoder.to_json() if simulation.federation.encoder else None,
        },
        "versions": {name: found for name, found in installed().items() if found},
        "out": out,
    }
    plain: dict[str, Any] = finite(summary)
    return plain


def _figures(outcome: RunOutcome) -> dict[str, Any]:
    """Accuracy and unfairness: exact, or from released counts if the data have a budget."""
    simulation = outcome.simulation
    schema = simulation.federation.schema
    released = None
    noise = outcome.state.release_plan.noise_of_evaluation
    if outcome.released and noise is not None:
        released = released_figures([reply.confusion for reply in outcome.released], schema, noise)
    if simulation.evaluator is None:
        return {"accuracy": None, **NO_FAIRNESS, **(released or {}), "rmse": None, "figures": "released"}
    test = simulation.evaluator.predicted("test")
    return {
        "accuracy": accuracy(test, schema),
        "rmse": root_mean_squared_error(test) if schema.task == "regression" else None,
        **_fairness(outcome, test),
        "figures": "exact",
        "released": released,
    }


def _verdict(outcome: RunOutcome, warnings: list[str]) -> dict[str, Any]:
    """Whether the model is as fair as was asked for: of a private run from released counts, of another from exact ones.

    `basis` says which; `earlier`: how many earlier runs have released counts of test records of the same data, as far
    as the ledger knows. Each of those was a chance to try again.
    """
    simulation = outcome.simulation
    schema, config, cells = simulation.federation.schema, simulation.config, simulation.cells
    target, run_ledger = config.fairness.target, simulation.run_ledger
    if run_ledger is not None and simulation.gateway is not None:
        noise, replies = outcome.state.release_plan.noise_of_evaluation, [r.confusion for r in outcome.released or ()]
        earlier = set(run_ledger.ledger.runs(run_ledger.dataset, EVALUATION)) - {run_ledger.run}
        found = released_verdict(replies, schema, noise, cells, target, warnings, why_no_verdict(config, schema.task))
        return {**found, "basis": "released", "earlier": len(earlier)}
    if simulation.evaluator is None:
        found = reported(impossible(target, "data with a budget show no exact figures"), cells.notion.name, warnings)
        return {**found, "basis": "none", "earlier": None}
    test = simulation.evaluator.predicted("test")
    counted = decisions(test, schema, cells) if len(test.records) else []
    reason = "there are no test records" if not len(test.records) else why_no_verdict(config, schema.task)
    reason = reason or f"{cells.notion.name} compares losses, not decisions"
    exact = verdict(counted, target) if counted else impossible(target, reason)
    return {**reported(exact, cells.notion.name, warnings), "basis": "exact", "earlier": None}


def _warnings(outcome: RunOutcome) -> list[str]:
    """Why the model is useless, if it is; for a private run, only what its released counts and the model show."""
    simulation = outcome.simulation
    if simulation.gateway is None and simulation.evaluator is not None:
        loss = outcome.history[-1].get("train_loss")
        found = exact_warnings(simulation.evaluator.predicted("test"), simulation.federation.schema, loss)
        return found or parameter_warnings(simulation.model.module)
    noise, found = outcome.state.release_plan.noise_of_evaluation, parameter_warnings(simulation.model.module)
    if not found and outcome.released and noise is not None:
        found = released_warnings([reply.confusion for reply in outcome.released], noise)
    return found


def _target(outcome: RunOutcome, verdict: dict[str, Any]) -> dict[str, Any]:
    """How λ followed the target; nothing where λ was given. All of it is released, or follows from what is."""
    controller, simulation = outcome.simulation.replica.controller, outcome.simulation
    if controller is None or not controller.round:
        return {}
    cells, attributes = simulation.cells, simulation.federation.schema.sensitive
    by_set = {
        f"{attributes[c.attribute].name}, {cells.notion.sets[c.condition].name}": {
            "lambda": float(controller.strengths[-1, e]),
            "tracked_gap": float(controller.gaps[-1, e]),
            "aim": float(controller.aims[-1, e]),
        }
        for e, c in enumerate(cells.comparisons)
    }
    lucky = verdict["answer"] in ("met", "not met")  # then it is said no more how likely that was
    notes = [note for note in controller.notes if not (lucky and note == out_of_reach(controller.plan.target))]
    return {"target": {"asked": controller.plan.target, "by_set": by_set, "notes": notes}}


def _privacy(outcome: RunOutcome) -> dict[str, Any]:
    """The statement of a private run, or that nothing is claimed."""
    simulation = outcome.simulation
    run_ledger, gateway, planner = simulation.run_ledger, simulation.gateway, simulation.spec.planner
    if run_ledger is not None and gateway is not None and planner is not None:
        return statement(
            simulation.config,
            outcome.state.release_plan,
            run_ledger,
            planner,
            simulation.federation.schema,
            plan=simulation.server.plan,
            prices=gateway.prices,
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
    """Records of every client: exact numbers, or released counts if the data have a budget."""
    simulation = outcome.simulation
    if simulation.evaluator is None:
        counts = outcome.state.release_plan.records
        return {c.name: {"released": int(n)} for c, n in zip(simulation.federation.clients, counts, strict=True)}
    return {c.name: {"train": len(c.train), "test": len(c.test)} for c in simulation.federation.clients}


def _fairness(outcome: RunOutcome, test: Predicted) -> dict[str, Any]:
    """Unfairness with intervals, the largest over all attributes and that of each; tables by group."""
    simulation = outcome.simulation
    schema, last, cells = simulation.federation.schema, outcome.history[-1], simulation.cells
    if not len(test.records):
        return dict(NO_FAIRNESS)
    rng = stream(simulation.config.run.seed, "bootstrap")
    notion = cells.notion.name
    by_attribute: dict[str, dict[str, Any]] = {}
    groups: dict[str, Any] = {}
    for a, attribute in enumerate(schema.sensitive):
        intervals = confidence_intervals(test, schema, rng, attribute=a)
        gaps = unfairness(test, schema, a)
        if notion not in gaps:  # on sets that the data or the user declare
            gaps[notion] = notion_gap(test, schema, cells, a)
            if counted := decisions(test, schema, cells, a):
                intervals.figures[notion] = interval(counted)
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
    """A note if records outside all declared groups set the run's largest gap."""
    simulation = outcome.simulation
    if simulation.evaluator is None:
        return []
    schema, test = simulation.federation.schema, simulation.evaluator.predicted("test")
    notion = simulation.cells.notion.name
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
