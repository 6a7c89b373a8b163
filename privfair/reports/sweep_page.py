"""The report of a sweep or of one of the paper's experiments: one page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w

from privfair.reports.numbers import Cell, number_cell, plural
from privfair.reports.pages import render_page
from privfair.reports.sweep_facts import SweepFacts, as_sweep, read_sweep
from privfair.reports.sweep_plot import frontier_plot
from privfair.sweeps.budgets import NOT_COVERED
from privfair.sweeps.frontiers import areas_of
from privfair.sweeps.points import Point, as_table, points_of, quality_name, warnings_of


def sweep_page(path: Path, *, include_private: bool = False) -> str:
    """The page of the sweep in a folder; without exact figures unless they are asked for, and allowed."""
    facts = read_sweep(path, include_private=include_private)
    points = points_of(facts.rows) if include_private else []
    quality = quality_name(facts.done)
    notion = next((row["notion"] for row in facts.done), "statistical_parity")
    names = {row["parameter"] for row in facts.rows} - {""}
    varied = "λ" if names <= {"lambda"} else " or ".join(sorted(names))
    experiment = facts.experiment
    claims = _claims(facts) if include_private and experiment is not None else []
    figure = frontier_plot(points, quality=quality, notion=notion, varied=varied) if points else None
    private = any(row["epsilon_target"] != float("inf") for row in facts.rows)
    settings = {name: table for name, table in facts.configuration.items() if isinstance(table, dict) and table}
    asked = {name: value for name, value in facts.configuration.items() if not isinstance(value, dict)}
    data = facts.configuration.get("data", {}).get("name", facts.configuration.get("experiment", "a sweep"))
    title = experiment.title if experiment is not None else f"Accuracy against unfairness on {data}"
    missing = max(0, facts.planned - len(facts.done) - len(facts.failed))
    return render_page(
        "sweep.html",
        title=title,
        plots=figure is not None,
        unreleased=include_private,
        experiment=experiment,
        summary=_summary(facts, points, missing),
        counts={"planned": facts.planned, "done": len(facts.done), "failed": len(facts.failed), "missing": missing},
        series=[[name, epsilon, str(done), str(failed)] for name, epsilon, done, failed in facts.by_series()],
        figure=figure,
        quality=quality,
        varied=varied,
        points=[_point_row(row, quality) for row in as_table(points, quality)] if points else [],
        areas=_areas(areas_of(points, facts.rows, quality)) if points else None,
        claims=claims,
        notes=experiment.notes if experiment is not None and include_private else (),
        failures=[[row["series"], str(row["seed"]), row["reason"]] for row in facts.failed] if include_private else [],
        not_covered=[NOT_COVERED] if private else [],
        private=private,
        settings=tomli_w.dumps(settings) if settings else "",
        asked={name: _words(value) for name, value in asked.items()},
        run=str(path),
    )


def _summary(facts: SweepFacts, points: Sequence[Point], missing: int) -> list[str]:
    done = plural(len(facts.done), "run")
    rest = f", {facts.planned} were planned" if facts.planned != len(facts.done) else ""
    found = [f"{done} of {plural(len(facts.by_series()), 'series', 'series')} are finished{rest}."]
    if facts.failed:
        found.append(f"{plural(len(facts.failed), 'run')} gave no result.")
    if missing:
        found.append("The sweep goes on where it was when it is started again with the same folder.")
    if points:
        seeds = max(len(point.seeds) for point in points)
        found.append(
            f"Each point of the figure is the mean of up to {plural(seeds, 'run')} that differ in their seed. Better "
            "is further up and further to the left: right more often, and less different between groups."
        )
    warnings = warnings_of(points)
    if warnings:
        found.append(f"Some models are of no use, however fair they look. {'; '.join(warnings)}.")
    return found


def _point_row(row: dict[str, Any], quality: str) -> list[Any]:
    return [
        row["series"],
        "∞" if row["epsilon"] is None else f"{row['epsilon']:g}",
        "–" if row["value"] is None else f"{row['value']:.4g}",
        str(row["runs"]),
        _with_error(row[quality], row[f"{quality}_se"]),
        _with_error(row["unfairness"], row["unfairness_se"]),
        "best of all" if row["pareto"] else "best of its series" if row["pareto_of_series"] else "",
    ]


def _with_error(value: float, error: float | None) -> Cell:
    return Cell(f"{value:.4f}", value, "" if error is None else f"± {error:.4f}")


def _areas(areas: dict[str, Any]) -> dict[str, Any] | None:
    """The areas that frontiers dominate, as rows; None without a corner to measure from."""
    reference = areas["reference"]
    if reference is None:
        return None
    (name, value) = next(iter(reference.items()))
    rows = []
    for number, area in enumerate(areas["series"]):
        to_first = Cell("–") if number == 0 else number_cell(area["difference_to_first"], area["difference_interval"])
        rows.append([area["series"], Cell(f"{area['value']:.4f}", area["value"], _span(area["interval"])), to_first])
    corner = f"{name} {value:.4f} and unfairness {reference['unfairness']:.4f} ({reference['origin']})"
    return {"rows": rows, "corner": corner}


def _span(interval: Sequence[float] | None) -> str:
    return "" if interval is None else f"{interval[0]:.4f} to {interval[1]:.4f}"


def _claims(facts: SweepFacts) -> list[list[str]]:
    """Each claim of the experiment: what the runs say of it, with numbers and the rule it was decided by."""
    from privfair.sweeps.paper.evidence import Evidence

    experiment = facts.experiment
    if experiment is None:
        return []
    evidence = Evidence.of(as_sweep(facts, experiment))
    decided = ((claim, claim.decide(evidence)) for claim in experiment.claims)
    return [[claim.text, verdict.outcome, verdict.numbers, claim.how] for claim, verdict in decided]


def _words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(str(one) for one in value) or "–" if isinstance(value, list) else str(value)
