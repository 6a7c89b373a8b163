"""`privfair.train` and `privfair.load`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from accountant.errors import InputError
from privfair.arrays import FloatArray
from privfair.clients.task import TaskKind
from privfair.config import Config
from privfair.datasets.records import Federation, Schema
from privfair.evaluation import Row
from privfair.experiment import Report, RunOutcome, build, run
from privfair.fairness.metrics import (
    THRESHOLD,
    accuracy,
    confidence_intervals,
    group_table,
    root_mean_squared_error,
    unfairness,
)
from privfair.fairness.notions import Notion
from privfair.models import build_module
from privfair.randomness import stream
from privfair.run_directory import RunDirectory

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class TrainedModel:
    """A model that says yes or no, and how likely. Features are those of the dataset, preprocessed, in its order."""

    module: torch.nn.Module
    features: tuple[str, ...]
    task: TaskKind

    def scores(self, x: Any) -> FloatArray:
        """For each record the probability of label 1, or for regression the prediction."""
        values = x[list(self.features)].to_numpy() if hasattr(x, "columns") else x
        array = np.atleast_2d(np.asarray(values, dtype=np.float64))
        if array.shape[1] != len(self.features):
            columns = ", ".join(self.features[:5])
            raise InputError("X", f"must have {len(self.features)} columns ({columns}, …)", array.shape[1])
        dtype = next(self.module.parameters()).dtype
        with torch.no_grad():
            outputs = self.module(torch.tensor(array, dtype=dtype)).reshape(-1)
            return self.task.predictions(outputs).numpy().astype(np.float64)

    def predict(self, x: Any) -> FloatArray:
        """The decision 0 or 1 for each record, or for regression the prediction."""
        scores = self.scores(x)
        return (scores >= THRESHOLD).astype(np.int64) if self.task.task == "binary" else scores


@dataclass(frozen=True)
class Result:
    """What a run gave. Accuracy and unfairness are exact, on the pooled test records of all clients."""

    accuracy: float | None
    unfairness: dict[str, float | None]
    privacy: dict[str, Any]
    model: TrainedModel
    metrics: dict[str, Any]  # everything, as in metrics.json
    rows: tuple[Row, ...]
    out: Path | None

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
    **sections: Mapping[str, Any],
) -> Result:
    """One federated run.

    `config` is a TOML file, nested tables or a `Config`; sections can be given by name as well:
    `train(data={"name": "compas"}, fairness={"lambda": 0.5})`. With `out` (or `run.out`) the run is kept on disk with a
    checkpoint after every round, and `resume` continues one: bit for bit what an uninterrupted run would have given.
    `dataset` trains on data of your own making instead of a registered dataset, and `notion` with a fairness notion of
    your own (`privfair.fairness.notions`): any score and any conditioning sets.
    """
    if resume is not None:
        if config is not None or sections or out is not None:
            raise InputError("resume", "takes its configuration from the run", "a config beside it")
        directory: RunDirectory | None = RunDirectory.open(Path(resume))
        resolved = directory.read_config() if directory else Config()
    else:
        resolved = _resolve(config, sections)
        where = out if out is not None else resolved.run.out
        setting = build(resolved, dataset, notion)  # before anything is written: bad input leaves no trace
        directory = None if where is None else RunDirectory.create(Path(where), resolved)
        return _finish(run(setting, directory, report), directory)
    return _finish(run(build(resolved, dataset, notion), directory, report), directory)


def load(path: str | Path) -> TrainedModel:
    """The model of a finished run: `load(run).predict(X)`."""
    from safetensors.torch import load_file

    directory = RunDirectory.open(Path(path))
    file = directory.path / "model.safetensors"
    if not file.is_file():
        raise InputError(
            "run", "must be finished, with a model.safetensors in it", str(path), "Continue it with --resume."
        )
    config = directory.read_config()
    about = json.loads((directory.path / "metrics.json").read_text(encoding="utf-8"))["model"]
    dtype = torch.float64 if config.run.dtype == "float64" else torch.float32
    module = build_module(config.model.name, len(about["features"]), config.model.hidden, config.run.seed, dtype)
    module.load_state_dict(load_file(file))
    low, high = about["range"]
    return TrainedModel(module, tuple(about["features"]), TaskKind(about["task"], low, high))


def default_directory(config: Config) -> Path:
    """A new name under runs/ that tells dataset, method and time."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{config.data.name}-{config.federation.method}-{stamp}"


def _resolve(config: Config | Mapping[str, Any] | str | Path | None, sections: Mapping[str, Any]) -> Config:
    if isinstance(config, str | Path):
        config = Config.read(Path(config))
    tree = config.as_tables() if isinstance(config, Config) else {k: dict(v) for k, v in (config or {}).items()}
    for name, table in sections.items():
        tree[name] = {**tree.get(name, {}), **table}
    return Config.build(tree)


def _finish(outcome: RunOutcome, directory: RunDirectory | None) -> Result:
    """Final figures, and the files of the run."""
    setting = outcome.setting
    schema = setting.federation.schema
    model = TrainedModel(setting.model.module, schema.features, TaskKind.of(schema))
    metrics = _metrics(outcome, schema, directory)
    if directory is not None:
        state = {name: tensor.detach().clone() for name, tensor in setting.model.module.state_dict().items()}
        directory.write_results(metrics, outcome.history, state)
    return Result(
        accuracy=metrics["accuracy"],
        unfairness=metrics["unfairness"],
        privacy=metrics["privacy"],
        model=model,
        metrics=metrics,
        rows=tuple(outcome.history),
        out=directory.path if directory else None,
    )


def _metrics(outcome: RunOutcome, schema: Schema, directory: RunDirectory | None) -> dict[str, Any]:
    setting = outcome.setting
    config, last = setting.config, outcome.history[-1]
    test = setting.evaluator.predicted("test")
    rng = stream(config.run.seed, "bootstrap")
    attributes = range(len(schema.sensitive)) if len(test.records) else ()
    return {
        "accuracy": accuracy(test, schema),
        "rmse": root_mean_squared_error(test) if schema.task == "regression" else None,
        "unfairness": {**unfairness(test, schema), "mmd2": last.get("test_mmd2")} if len(test.records) else {},
        "confidence_intervals": confidence_intervals(test, schema, rng),
        "groups": {schema.sensitive[a].name: group_table(test, schema, a) for a in attributes},
        "objective": {k: v for k, v in last.items() if k.startswith(("train_", "test_"))},
        "privacy": {
            "private": False,
            "epsilon": {"rdp": None, "pld": None},
            "note": "No noise, no privacy claim: scores, updates and counts leave the clients as they are.",
        },
        "bytes": {"up": setting.backend.bytes_up, "down": setting.backend.bytes_down},
        "seconds": {"total": outcome.seconds},
        "rounds": outcome.state.round,
        "data": {
            "name": setting.federation.name,
            "clients": {c.name: {"train": len(c.train), "test": len(c.test)} for c in setting.federation.clients},
            "notes": list(setting.federation.notes),
            "schema_inferred": schema.inferred,
        },
        "model": {
            "name": config.model.name,
            "features": list(schema.features),
            "task": schema.task,
            "range": list(TaskKind.of(schema).score_range("prediction") or (0.0, 1.0)),
            "parameters": int(setting.initial.size),
        },
        "out": str(directory.path) if directory else None,
    }
