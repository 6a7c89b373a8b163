"""The report of a sweep or of one of the paper's experiments. Its figures are exact figures of simulations."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from accountant.errors import InputError, Refused
from privfair.config import Config
from privfair.numbers import Cell, number_cell, plural
from privfair.privacy.run_ledger import dataset_name
from privfair.reports.figures import COLOURS, DASHES, SYMBOLS, Figure, Trace, axis, plain
from privfair.reports.pages import render_page
from privfair.reports.run_facts import has_budget, without_password
from privfair.sweeps.figures import Z, limits_of, means_outside, unfairness_label
from privfair.sweeps.frontiers import (
    Point,
    areas_of,
    as_table,
    by_series,
    efficient,
    points_of,
    quality_name,
    sign_of,
    warnings_of,
)
from privfair.sweeps.jobs import NOT_COVERED, Job, Key
from privfair.sweeps.journal import ABOUT, HISTORIES, RESULTS, Ended, Row, by_round, newest, read_lines
from privfair.sweeps.paper import EXPERIMENTS
from privfair.sweeps.paper.claims import Evidence, Experiment


@dataclass(frozen=True)
class SweepFacts(Ended):
    """A sweep for people."""

    path: Path
    configuration: Mapping[str, Any]  # as asked for; without the digest of the data
    planned: int
    rows: tuple[Row, ...]  # the line that counts of every run, failed ones too
    histories: Mapping[Key, list[Row]]

    @property
    def experiment(self) -> Experiment | None:
        """The paper's experiment, if it is one."""
        return EXPERIMENTS.get(self.configuration.get("experiment", ""))

    def by_series(self) -> list[tuple[str, str, int, int]]:
        """(series, ε, runs done, runs failed), in the order in which they appear."""
        done = Counter((row["series"], row["epsilon_target"]) for row in self.done)
        failed = Counter((row["series"], row["epsilon_target"]) for row in self.failed)
        names = dict.fromkeys((row["series"], row["epsilon_target"]) for row in self.rows)
        return [(series, _epsilon(e), done[series, e], failed[series, e]) for series, e in names]


def read_sweep(path: Path, *, include_private: bool) -> SweepFacts:
    """The sweep in a folder, which stays untouched. Raise if exact figures are asked for of data with a budget."""
    try:
        about = json.loads((path / ABOUT).read_text(encoding="utf-8"))
        configuration = dict(about["configuration"])
        planned = int(about["runs"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(ABOUT, "must be whole and readable", str(path / ABOUT), f"({error})") from None
    configuration.pop("data fingerprint", None)  # a digest of the records would confirm a guess of them
    if include_private:
        _require_unbudgeted(configuration)
    rows = tuple(newest(read_lines(path / RESULTS)).values())
    planned = max(planned, len(rows))  # earlier versions noted only what the last call had asked for
    return SweepFacts(path, _shown(configuration), planned, rows, by_round(read_lines(path / HISTORIES)))


def _require_unbudgeted(configuration: Mapping[str, Any]) -> None:
    if "experiment" in configuration:
        jobs = _jobs(EXPERIMENTS[configuration["experiment"]], configuration)
        configs = {job.config.data.name: job.config for job in jobs}.values()
    else:
        named = configuration.get("privacy", {}).get("dataset")
        run = configuration.get("run", {}).get("ledger")
        tables = {"data": configuration["data"], "privacy": {"dataset": named} if named else {}}
        configs = {"": Config.build({**tables, "run": {"ledger": run} if run else {}})}.values()
    for config in configs:
        name = dataset_name(config, config.data.name)
        if has_budget(config, name):
            raise Refused(
                f"Dataset {name!r} has a budget: exact figures of it are shown to nobody, and --include-private is "
                "refused. Without that option the report shows which runs there are, and their settings."
            )


def _shown(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without the password of a ledger."""
    run = configuration.get("run", {})
    if run.get("ledger"):
        return {**configuration, "run": {**run, "ledger": without_password(run["ledger"])}}
    return dict(configuration)


def _epsilon(value: float) -> str:
    return "∞" if value == float("inf") else f"{value:g}"


def frontier_plot(points: Sequence[Point], *, quality: str, notion: str, varied: str = "λ") -> Figure:
    """Quality over unfairness, a line for each series in the order of what is varied; hover shows λ, method, seeds."""
    sign = sign_of(quality)
    left, right, bottom, top = limits_of(points, sign)
    traces: list[Trace] = []
    ends = []
    for number, (name, of) in enumerate(by_series(points).items()):
        colour = COLOURS[number % len(COLOURS)]
        best = efficient(of)
        traces += [
            _region(point, f"{colour}/0.16", name, sign)
            for point, unbeaten in zip(of, best, strict=True)
            if unbeaten and len(point.seeds) > 1
        ]
        traces.append(
            {
                "type": "scatter", "mode": "lines+markers", "name": plain(name), "legendgroup": plain(name),
                "x": [p.mean[1] for p in of], "y": [sign * p.mean[0] for p in of],
                "line": {"color": colour, "width": 1.6, "dash": DASHES[number // len(COLOURS) % len(DASHES)]},
                "marker": {
                    "color": [colour if unbeaten else "var(--card)" for unbeaten in best], "size": 9,
                    "symbol": SYMBOLS[number % len(SYMBOLS)], "line": {"color": colour, "width": 1.6},
                },
                "text": [plain(_hover(p, varied)) for p in of],
                "hovertemplate": f"%{{text}}<br>{quality} %{{y:.4f}}<br>unfairness %{{x:.4f}}"
                                 f"<extra>{plain(name)}</extra>",
            }
        )  # fmt: skip
        fairest = min(of, key=lambda p: p.mean[1])
        ends.append(
            f"{name} is fairest at unfairness {fairest.mean[1]:.3f} with {quality} {sign * fairest.mean[0]:.3f}"
        )
    outside = means_outside(points, sign)
    more = f" {outside} of {len(points)} means lie outside; double-click shows all." if outside else ""
    return Figure(
        "frontier",
        "The trade-off.",
        f"Filled marks: not beaten by another point of their series. Shaded: their mean ± {Z} standard errors.{more}",
        f"Scatter chart of {quality} over {unfairness_label(notion)}: {'; '.join(ends)}.",
        traces,
        {"xaxis": axis(unfairness_label(notion), range=[left, right]), "yaxis": axis(quality, range=[bottom, top])},
        ["series", varied, quality, "unfairness", "runs"],
        [
            [p.name, "–" if p.value is None else f"{p.value:.4g}", Cell(f"{sign * p.mean[0]:.4f}", sign * p.mean[0]),
             Cell(f"{p.mean[1]:.4f}", p.mean[1]), str(len(p.seeds))]
            for p in points
        ],
    )  # fmt: skip


def _hover(point: Point, varied: str) -> str:
    value = "" if point.value is None else f"{varied} = {point.value:.4g}, "
    privacy = "" if math.isinf(point.epsilon) else f", ε = {point.epsilon:g}"
    return f"{point.method}: {value}seeds {', '.join(map(str, point.seeds))}{privacy}"


def _region(point: Point, colour: str, name: str, sign: float) -> Trace:
    """The confidence ellipse of a mean, as a closed line."""
    covariance = np.cov(np.stack([point.unfairness, sign * point.quality])) / len(point.seeds)
    sizes, directions = np.linalg.eigh(covariance)
    angle = np.linspace(0, 2 * np.pi, 41)
    circle = np.stack([np.cos(angle), np.sin(angle)]) * Z * np.sqrt(np.maximum(sizes, 0.0))[:, None]
    x, y = directions @ circle + np.array([[point.mean[1]], [sign * point.mean[0]]])
    return {
        "type": "scatter", "mode": "lines", "x": np.round(x, 6).tolist(), "y": np.round(y, 6).tolist(),
        "fill": "toself", "fillcolor": colour, "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False,
        "legendgroup": plain(name),
    }  # fmt: skip


def sweep_page(path: Path, *, include_private: bool = False) -> str:
    """The page of the sweep in a folder; exact figures only if they are asked for and allowed."""
    facts = read_sweep(path, include_private=include_private)
    points = points_of(facts.rows) if include_private else []
    quality = quality_name(facts.done)
    notion = next((row["notion"] for row in facts.done), "statistical_parity")
    names = {row["parameter"] for row in facts.rows} - {""}
    varied = "λ" if names <= {"lambda"} else " or ".join(sorted(names))
    experiment = facts.experiment
    claims = _claims(facts, experiment) if include_private and experiment is not None else []
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
        found.append("Started again with the same folder, the sweep continues where it stopped.")
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
    """The areas that frontiers dominate, as rows; None without a reference point."""
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


def _claims(facts: SweepFacts, experiment: Experiment) -> list[list[str]]:
    """What the runs say of each claim of the experiment, with numbers and the rule that decided it."""
    seeds = len({row["seed"] for row in facts.rows}) or 1  # as many as there are
    asked = replace(experiment, seeds=seeds, quick_seeds=seeds)
    evidence = Evidence(_jobs(asked, facts.configuration), facts.rows, facts.histories)
    decided = ((claim, claim.decide(evidence)) for claim in experiment.claims)
    return [[claim.text, verdict.outcome, verdict.numbers, claim.how] for claim, verdict in decided]


def _jobs(experiment: Experiment, configuration: Mapping[str, Any]) -> list[Job]:
    return experiment.jobs(quick=bool(configuration["quick"]), overrides=list(configuration["set"]))


def _words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(str(one) for one in value) or "–" if isinstance(value, list) else str(value)
