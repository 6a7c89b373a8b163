"""`privfair.train` and `privfair.load`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accountant.errors import InputError, Refused
from privfair.config import Config, with_overrides
from privfair.datasets.csv_file import from_table
from privfair.datasets.guess import BINARY_FILES, guessed, look_at, require_complete, table_tree
from privfair.datasets.records import Federation
from privfair.datasets.table import Table, table_of
from privfair.engines.evaluation import Row
from privfair.fairness.notions import Notion
from privfair.federated.exchange import Unfinished
from privfair.models import TaskKind, exported, with_scaling
from privfair.runs.assembly import Simulation, build
from privfair.runs.folder import RunDirectory, TrainedModel, load
from privfair.runs.keys import Credentials
from privfair.runs.loop import Planned, Report, RunOutcome, run
from privfair.runs.summary import summarise

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Result", "default_directory", "load", "train"]


@dataclass(frozen=True)
class Result:
    """The result of a run. Accuracy and unfairness are on the pooled test records of all clients.

    They are exact, except for data with a budget: there they come from released noisy counts, or are None. For each
    notion, unfairness is the largest gap over all sensitive attributes; `metrics["unfairness_of"]` names the attribute
    with that gap, and `metrics["by_attribute"]` has the gaps of each.
    """

    accuracy: float | None
    unfairness: dict[str, float | None]
    privacy: dict[str, Any]
    model: TrainedModel
    metrics: dict[str, Any]  # everything, as in metrics.json
    rows: tuple[Row, ...]
    out: Path | None

    @property
    def verdict(self) -> dict[str, Any]:
        """Whether the model is as fair as was asked for: `answer`, `gap`, `interval`, `upper`, `target`, `sentence`, …

        `answer` is "met", "not met" or "cannot tell", and None without fairness.target. Its entries are attributes,
        too: `result.verdict.answer`. Of a private run it rests on released counts, of another on exact ones.
        """
        from sklearn.utils import Bunch

        found: dict[str, Any] = Bunch(**self.metrics["verdict"])
        return found

    @property
    def history(self) -> pd.DataFrame:
        """One line per evaluated round."""
        import pandas as pd

        return pd.DataFrame(list(self.rows))


def train(
    config: Config | Mapping[str, Any] | str | Path | None = None,
    *,
    dataset: Federation | None = None,
    notion: Notion | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    report: Report | None = None,
    planned: Planned | None = None,
    label: str | None = None,
    sensitive: str | None = None,
    client: str | None = None,
    positive: str | None = None,
    target: float | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    **sections: Mapping[str, Any],
) -> Result:
    """One federated run.

    From a table, a data frame or the path of a CSV file: `train(frame, label="hired", sensitive="sex", client="branch",
    target=0.05, epsilon=3)`. The roles that are not named are guessed as `privfair init` does (`result.metrics` has
    them under "guessed"), `positive` is the label that counts as 1, `target` bounds the gap between groups, and epsilon
    and delta are those of [privacy]. `privacy={"dataset": …}` names a data frame in the ledger.

    `config` is a TOML file, nested tables or a `Config`; sections can be given by name as well:
    `train(data={"name": "compas"}, fairness={"lambda": 0.5})`. With `out` (or `run.out`) the run is kept on disk with a
    checkpoint after every round, and `resume` continues one with the same result, bit for bit, as without a break.
    `dataset` trains on data of your own making instead of a registered dataset, and `notion` with a fairness notion of
    your own (`privfair.fairness.notions`): any score and any conditioning sets. To resume such a run give them again.
    `report` is called with every line of the history, `planned` with the plan of a private run before it trains.
    """
    for name, hook in (("report", report), ("planned", planned)):
        if hook is not None and not callable(hook):
            raise InputError(name, "must be a function", hook)
    named = {"label": label, "sensitive": sensitive, "client": client, "positive": positive}
    goal = {"target": target, "epsilon": epsilon, "delta": delta}
    found: str | None = None
    if resume is not None:
        frame = table_of(config) if is_frame(config) else None
        if (
            (config is not None and frame is None)
            or sections
            or out is not None
            or any((*named.values(), *goal.values()))
        ):
            raise InputError("resume", "takes its configuration from the run", "a config beside it")
        directory = RunDirectory.open(Path(resume))
        kept: RunDirectory | None = directory
        dataset = dataset if frame is None else _federation(frame, directory.read_config())
        simulation = _reopened(directory, dataset, notion)
    else:
        if is_table(config, named):
            if dataset is not None:
                raise InputError("dataset", "must be left out beside a table", type(dataset).__name__)
            resolved, table, found = from_bare_table(config, sections, named=named, goal=goal)
            dataset = None if table is None else _federation(table, resolved)
        else:
            require_no_roles({**named, **goal})
            resolved = _resolve(config, sections)
        if resolved.run.engine.startswith("flower") and (dataset is not None or notion is not None):
            rule = "must be local or stacked for data or a notion of your own making"
            raise InputError("run.engine", rule, resolved.run.engine, "Data holders read their data themselves.")
        simulation = build(resolved, dataset, notion)  # before anything is written: bad input leaves no trace
        where = out if out is not None else resolved.run.out
        kept = None if where is None else RunDirectory.create(Path(where), simulation.config)
    try:
        if kept is not None and resume is None:
            _keep_identity(kept, simulation)
        with nullcontext() if kept is None else kept.locked():
            return _finish(_engine(simulation)(simulation, kept, report, planned), kept, found)
    except Unfinished as stopped:
        where = "" if kept is None else f" Continue it with: privfair train --resume {kept.path}"
        raise Unfinished(f"{stopped}{where}") from None
    except (InputError, Refused, OSError):
        if kept is not None and resume is None and not _has_begun(kept, simulation):
            kept.remove()  # nothing was released and no round has ended: there is nothing to resume
        raise
    finally:
        simulation.close()


# ---- A bare table instead of a configuration.

TABLES = (".csv", ".tsv", ".tab", ".txt", ".data", *BINARY_FILES)


def is_frame(source: Any) -> bool:
    """Whether this is a data frame."""
    return hasattr(source, "columns") and hasattr(source, "iloc")


def is_table(source: Any, named: Mapping[str, Any]) -> bool:
    """Whether this is a table, and no configuration: by what it is, its name, or because roles of columns are named."""
    if is_frame(source):
        return True
    if not isinstance(source, str | Path):
        return False
    return Path(source).suffix.lower() in TABLES or (Path(source).suffix != ".toml" and any(named.values()))


def require_no_roles(given: Mapping[str, Any]) -> None:
    """Raise if options are given that go with a table."""
    for name, value in given.items():
        if value is not None:
            section = {"target": "fairness", "epsilon": "privacy", "delta": "privacy"}.get(name, "data")
            raise InputError(name, "goes with a bare table (CSV)", value, f"Set {section}.{name} in the configuration.")


def from_bare_table(
    source: Any,
    tree: Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    named: Mapping[str, str | None],
    goal: Mapping[str, float | None],
) -> tuple[Config, Table | None, str]:
    """The configuration for a table, the table where it is a data frame, and what was guessed, in a line."""
    frame = table_of(source) if is_frame(source) else None
    settings = with_overrides(tree, overrides)
    encoding = settings.get("data", {}).get("encoding", "utf-8")
    look = look_at(Path(source) if frame is None else frame, encoding, **named)
    require_complete(look)
    merged = table_tree(look, settings, **goal)
    if frame is None:
        merged["data"] = {"path": str(source), **merged["data"]}
    else:
        roles = (look.guess.label, look.guess.sensitive, look.guess.client or "all")
        merged["privacy"] = {"dataset": " ".join("-".join(roles).split()), **merged.get("privacy", {})}
    return Config.build(merged), frame, guessed(look)


def _federation(table: Table, config: Config) -> Federation:
    """The federation of a data frame; its roles are options of the configuration."""
    return from_table(table, seed=config.run.seed, test_fraction=config.data.test_fraction, **config.data.options)


def _engine(
    simulation: Simulation,
) -> Callable[[Simulation, RunDirectory | None, Report | None, Planned | None], RunOutcome]:
    """The function that runs the rounds."""
    if simulation.config.run.engine in ("flower", "flower-simulation"):
        try:
            from privfair.deployment.flower.trial import run_trial
        except ModuleNotFoundError as error:
            remedy = "Install it with: pip install 'privfair[flower]'"
            raise InputError("run.engine", "needs Flower", f"no module {error.name}", remedy) from None
        return run_trial
    return run


def _has_begun(directory: RunDirectory, simulation: Simulation) -> bool:
    """Whether there is anything to resume: a checkpoint, or a release in the ledger."""
    places = (directory.path, directory.path / "flower" / "server")
    return any((place / "checkpoint.npz").is_file() for place in places) or (
        simulation.run_ledger is not None and bool(simulation.run_ledger.spends())
    )


def _reopened(directory: RunDirectory, dataset: Federation | None, notion: Notion | None) -> Simulation:
    """The simulation of an interrupted run: under the same name in the ledger, with the same keys."""
    known = directory.read_identity()
    simulation = build(directory.read_config(), dataset, notion, None if known is None else Credentials(*known))
    if known is None:
        _keep_identity(directory, simulation)
    return simulation


def _keep_identity(directory: RunDirectory, simulation: Simulation) -> None:
    credentials = simulation.credentials
    directory.write_identity(credentials.run, credentials.keys, credentials.ledger_id)


def default_directory(config: Config) -> Path:
    """A new name under runs/ with dataset, method and time."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{config.data.name}-{config.federation.method}-{stamp}"


def _resolve(config: Any, sections: Mapping[str, Any]) -> Config:
    if isinstance(config, str | Path):
        config = Config.read(Path(config))
    if config is not None and not isinstance(config, Config | Mapping):
        rule = "must be the path of a TOML file, tables of keys, or a Config"
        raise InputError("config", rule, config, "Data of your own: train(dataset=…), or data.name = csv.")
    tree: dict[str, Any] = config.as_tables() if isinstance(config, Config) else dict(config or {})
    for name, table in sections.items():
        before = tree.get(name, {})
        both = isinstance(before, Mapping) and isinstance(table, Mapping)
        tree[name] = {**before, **table} if both else table
    return Config.build(tree)


def _finish(outcome: RunOutcome, directory: RunDirectory | None, found: str | None) -> Result:
    """The result with final figures; writes the files of the run. `found`: what was guessed of a bare table."""
    simulation = outcome.simulation
    schema, module = simulation.federation.schema, simulation.model.module
    scaling = outcome.state.release_plan.scaling
    trained = TrainedModel(
        with_scaling(module, scaling), schema.features, TaskKind.of(schema), simulation.federation.encoder
    )
    metrics = summarise(outcome, str(directory.path) if directory else None)
    metrics |= {} if found is None else {"guessed": found}
    if directory is not None:
        directory.write_results(metrics, outcome.history, exported(module, scaling))
    if simulation.gateway is not None:
        simulation.gateway.delivered()
    return Result(
        accuracy=metrics["accuracy"],
        unfairness=metrics["unfairness"],
        privacy=metrics["privacy"],
        model=trained,
        metrics=metrics,
        rows=tuple(outcome.history),
        out=directory.path if directory else None,
    )
