"""A trained model, ready to be used on new records, and the file of its weights."""

from __future__ import annotations

import csv
import fcntl
import hashlib
import io
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import tomli_w
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from typing_extensions import TypedDict

from accountant.errors import InputError, Refused
from accountant.ledger.storage import absolute_url, ledger_url
from privfair.codec import TREE, Arrays, Codec, FloatArray, with_tree
from privfair.config import Config
from privfair.datasets.columns import Encoder
from privfair.datasets.registry import find
from privfair.engines.evaluation import Row
from privfair.fairness.metrics import THRESHOLD
from privfair.federated.exchange import Absence, Memory
from privfair.federated.messages import Evaluation
from privfair.federated.release_plan import ReleasePlan
from privfair.models import TaskKind, build_module, imported, torch_type, with_scaling
from privfair.runs.defaults import with_keys
from privfair.secure_aggregation import VERSION, KeyPair, load_client, load_server, require_resumable
from privfair.util import GrowingFile, read_arrays, write_arrays, write_bytes, write_json

DIGEST = "privfair.sha256"  # in the metadata of the file


@dataclass(frozen=True)
class TrainedModel:
    """A model that says yes or no, and how likely.

    It takes rows as they are in the source (a pandas table, or a list of dicts), which its `encoder` prepares as the
    training data were; or a plain matrix of features that are prepared already, in the order of `features`.
    """

    module: torch.nn.Module
    features: tuple[str, ...]
    task: TaskKind
    encoder: Encoder | None

    def scores(self, x: Any) -> FloatArray:
        """For each record the probability of label 1, or for regression the prediction."""
        matrix = self._matrix(x)
        dtype = next(self.module.parameters()).dtype
        self.module.eval()
        with torch.no_grad():
            outputs = self.module(torch.tensor(matrix, dtype=dtype)).reshape(-1)
            return self.task.predictions(outputs).numpy().astype(np.float64)

    def predict(self, x: Any) -> FloatArray:
        """The decision 0 or 1 for each record, or for regression the prediction."""
        scores = self.scores(x)
        return (scores >= THRESHOLD).astype(np.int64) if self.task.task == "binary" else scores

    def _matrix(self, x: Any) -> FloatArray:
        """The features of the records, prepared; refuses what is not a number."""
        named = ", ".join(self.features[:5]) + (", …" if len(self.features) > 5 else "")
        rows = hasattr(x, "columns") or (isinstance(x, list) and bool(x) and isinstance(x[0], dict))
        if rows and self.encoder is not None:
            return self.encoder.encode(x)
        if rows:
            raise InputError("X", f"must be a matrix of the features {named}", type(x).__name__)
        matrix = np.atleast_2d(np.asarray(x, dtype=np.float64))
        if matrix.shape[1] != len(self.features):
            raise InputError("X", f"must have {len(self.features)} columns ({named})", matrix.shape[1])
        if not np.isfinite(matrix).all():
            raise InputError("X", "must be finite", "nan or inf", "Rows as they are in the source may have gaps.")
        return matrix


def load(path: str | Path) -> TrainedModel:
    """The model of a finished run: `load(run).predict(X)`."""
    directory = RunDirectory.open(Path(path))
    config, metrics, weights = directory.read_config(), directory.read_metrics(), directory.read_model()
    about = metrics["model"]
    with readable(directory.path / "metrics.json", KeyError, TypeError):
        features, (low, high) = tuple(about["features"]), about["range"]
        task = TaskKind(about["task"], low, high)
        encoder = Encoder.from_json(about["encoder"]) if about["encoder"] else None
    dtype = torch_type(config.run.dtype)
    module = build_module(config.model.name, len(features), config.model.hidden, config.run.seed, dtype)
    weights, scaling = imported(weights)
    try:
        module.load_state_dict(weights)
    except RuntimeError:
        expected = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in module.state_dict().items())
        found = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in weights.items())
        rule = f"must be of the model that config.toml describes ({expected})"
        raise InputError("model.safetensors", rule, found) from None
    return TrainedModel(with_scaling(module, scaling), features, task, encoder)


def weights_file(weights: Mapping[str, torch.Tensor]) -> bytes:
    """The weights in the safetensors format, with their digest in its metadata; refuses those that are not finite."""
    found = {name: tensor.detach().contiguous() for name, tensor in weights.items()}
    _require_finite(found, "model", "It diverged. Try a smaller learning rate.")
    return save(found, metadata={DIGEST: weights_digest(found)})


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """What `weights_file` made; refuses weights that are not finite, or not those of the digest where there is one."""
    try:
        with safe_open(path, framework="pt") as file:
            kept = (file.metadata() or {}).get(DIGEST)
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    except (OSError, SafetensorError) as error:
        raise InputError(path.name, "must be whole and readable", str(path), f"({error})") from None
    if kept is not None and kept != weights_digest(weights):  # files of earlier versions have none
        rule, remedy = "must have the weights that training wrote", "They were changed since."
        raise InputError(path.name, rule, f"others than those of its digest in {path}", remedy)
    _require_finite(weights, path.name, "Such a model says nothing of anybody. Train it again.")
    return weights


def weights_digest(weights: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 of names, types, shapes and values."""
    found = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().contiguous()
        found.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        found.update(tensor.view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _require_finite(weights: Mapping[str, torch.Tensor], where: str, remedy: str) -> None:
    wrong = [name for name, tensor in weights.items() if not torch.isfinite(tensor).all()]
    if wrong:
        raise InputError(where, "must have finite weights", f"nan or inf in {wrong[0]!r}", remedy)


# ---- The folder of a run: configuration, checkpoint, history, model, metrics. Every file is whole or not there.


FORMAT = 5
EARLIER_FORMATS = (3, 4)  # of versions up to 0.2; in the first, history and absences are in the checkpoint itself


@dataclass(frozen=True)
class Checkpoint:
    """All that a run needs to go on after a round as if nothing had happened."""

    identity: str
    round: int
    release_plan: ReleasePlan
    algorithm: Memory
    replica: Memory
    client_state: Memory
    history: Sequence[Row]
    bytes_up: int
    bytes_down: int
    seconds: float
    ledger_rows: int = 0  # of this run, when the checkpoint was made
    released: tuple[Evaluation, ...] | None = None  # the final noisy counts: asked for once
    uncounted: tuple[int, ...] = ()
    absent: tuple[Absence, ...] = ()


@dataclass(frozen=True)
class _LogSize:
    size: int
    digest: str


@dataclass(frozen=True)
class _Saved:
    """A checkpoint in its file; its history and absences are in the log, of which `log` says how much counts."""

    format: int
    log: _LogSize | None  # None: of a format without a log
    checkpoint: Checkpoint


class _Line(TypedDict, total=False):
    """A line of the log: one of the two."""

    row: Row
    absent: Absence


def _earlier(arrays: Arrays) -> Arrays:
    """A checkpoint as versions up to 0.2 wrote it, in today's form; one of another version is refused."""
    about = json.loads(arrays[TREE].tobytes())
    found = about.pop("format")
    if found == FORMAT:
        return arrays
    if found not in EARLIER_FORMATS:
        writer = "A newer privfair" if isinstance(found, int) and found > FORMAT else "An early privfair 0.1.0"
        remedy = f"{writer} wrote it, and can finish the run."
        raise InputError("checkpoint", f"must be of format {EARLIER_FORMATS[0]} to {FORMAT}", found, remedy)
    places = {"algorithm": "algorithm/", "replica": "replica/", "client_state": "client/"}
    for name, prefix in places.items():
        about[name] = {n.removeprefix(prefix): n for n in arrays if n.startswith(prefix)}
    released = about["released"] and [{"confusion": tables} for tables in about["released"]]
    about |= {"release_plan": about.pop("terms"), "released": released}
    about = {"history": [], "absent": [], **about}
    return with_tree(arrays, {"format": FORMAT, "log": about.pop("log", None), "checkpoint": about})


_checkpoints = Codec[_Saved](_Saved, "checkpoint", what="checkpoint.npz", finite=False, earlier=_earlier)
_lines = Codec[_Line](_Line, "line", what="history.jsonl", finite=False)


class _Log:
    """history.jsonl: the lines of the history and the absences so far, one JSON object each, in the order they came.

    A checkpoint only says how much of it counts, so that the cost of a checkpoint does not grow with the rounds.
    """

    def __init__(self, folder: Path) -> None:
        """Empty; no file is touched."""
        self.file = GrowingFile(folder / "history.jsonl")
        self.history = self.absent = 0  # how many of each are in it

    def extend(self, history: Sequence[Row], absent: Sequence[Absence]) -> None:
        """Append what is new: both only grow."""
        if len(history) < self.history or len(absent) < self.absent:
            raise ValueError("history and absences of a run must only grow")
        new: list[_Line] = [{"row": row} for row in history[self.history :]]
        new += [{"absent": absence} for absence in absent[self.absent :]]
        self.file.append("".join(_lines.to_text(line, sort_keys=False) + "\n" for line in new).encode())
        self.history, self.absent = len(history), len(absent)

    def read(self, size: int, digest: str) -> tuple[tuple[Row, ...], tuple[Absence, ...]]:
        """What counts, and will be appended to."""
        lines = [_lines.from_text(line) for line in self.file.read(size, digest).decode().splitlines()]
        history = tuple(line["row"] for line in lines if "row" in line)
        absent = tuple(line["absent"] for line in lines if "absent" in line)
        self.history, self.absent = len(history), len(absent)
        return history, absent


FIRST_ENCODING = {"adult": "compact", "credit": "compact"}  # of runs whose configuration does not name one


class RunDirectory:
    """One run on disk."""

    def __init__(self, path: Path) -> None:
        """Nothing is touched yet."""
        self.path = path
        self._new: list[Path] = []  # folders that were made for it, innermost first
        self._before: frozenset[str] | None = None  # what was in its folder before it; None: it was not made here
        self._log: _Log | None = None  # known after the first checkpoint is read or written

    @staticmethod
    def create(path: Path, config: Config) -> RunDirectory:
        """A new run; refuses a folder that already holds something."""
        tables = config.as_tables()
        if isinstance(tables["data"].get("path"), str):  # the run can be resumed from any folder
            tables["data"]["path"] = str(Path(tables["data"]["path"]).resolve())
        if config.data.name in FIRST_ENCODING:  # the default of this version may not be that of the next
            tables["data"].setdefault("encoding", find(config.data.name).options()["encoding"])
        if config.privacy.enabled:  # and to one ledger it belongs
            tables["run"]["ledger"] = absolute_url(ledger_url(config.run.ledger))
        directory = RunDirectory(path)
        try:
            if path.exists() and not (path.is_dir() and all(p.name.startswith(".") for p in path.iterdir())):
                raise InputError("--out", "must be a new or empty folder", str(path), "Use --resume to continue a run.")
            directory._new = [p for p in (path, *path.parents) if not p.exists()]
            directory._before = frozenset() if directory._new else frozenset(p.name for p in path.iterdir())
            write_bytes(path / "config.toml", tomli_w.dumps(tables).encode())
        except OSError as error:
            directory.remove()
            raise InputError("--out", f"must be a folder that can be written ({error.strerror})", str(path)) from None
        return directory

    @staticmethod
    def open(path: Path) -> RunDirectory:
        """An existing run."""
        try:
            there = (path / "config.toml").is_file()
        except (OSError, ValueError):  # a name that no file can have
            there = False
        if not there:
            raise InputError("run", "must be the folder of a run, with a config.toml in it", str(path))
        return RunDirectory(path)

    def read_config(self) -> Config:
        """The run's settled configuration; what a file of an earlier version left open has the value it had then."""
        config = self._written()
        then: dict[str, Any] = {}
        if config.fairness.tracker is None or config.aggregation.masks is None:
            then = {"fairness.tracker": config.fairness.tracker or "samples", "aggregation.masks": config.masks}
            then |= {"privacy.counts": config.privacy.counts} if config.privacy.enabled else {}
        if config.data.name in FIRST_ENCODING and "encoding" not in config.data.options:
            then["data.encoding"] = FIRST_ENCODING[config.data.name]
        return with_keys(config, then)

    def _written(self) -> Config:
        return Config.read(self.path / "config.toml")

    def read_privacy(self) -> dict[str, Any]:
        """The privacy statement."""
        return self._read_json("privacy.json")

    def read_metrics(self) -> dict[str, Any]:
        """The final figures; they are written last, so a run that has them is complete."""
        path = self.path / "metrics.json"
        if not path.is_file():
            raise InputError("run", "must be finished", str(self.path), "Continue it with --resume.")
        metrics = self._read_json("metrics.json")
        missing = [name for name in ("data", "figures", "model", "privacy") if name not in metrics]
        if missing:
            raise InputError("metrics.json", "must be whole", f"no {missing[0]!r} in {path}")
        return metrics

    def digest(self, name: str) -> str:
        """The SHA-256 of one of the files."""
        with readable(self.path / name):
            return hashlib.sha256((self.path / name).read_bytes()).hexdigest()

    def _read_json(self, name: str) -> dict[str, Any]:
        path = self.path / name
        with readable(path, TypeError):
            return dict(json.loads(path.read_text(encoding="utf-8")))

    def read_model(self) -> dict[str, Any]:
        """The weights of the trained model, by name: those that metrics.json has the digest of, where it has one."""
        weights, path = read_weights(self.path / "model.safetensors"), str(self.path)
        known = self.read_metrics().get("model", {}).get("digest")  # earlier versions wrote none
        if known is not None and known != weights_digest(weights):
            rule, remedy = "must be the model of this run", "The file was replaced or changed. Train again."
            raise InputError("model.safetensors", rule, f"another than that of metrics.json in {path}", remedy)
        return weights

    def write_identity(self, run: str, keys: KeyPair | None, ledger_id: str | None) -> None:
        """Keep the run's name, its ledger's, a digest of its configuration and, where it has its own, its keys."""
        if keys is not None:
            unfinished = self.path / "keys.unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            keys.save(unfinished)
            unfinished.rename(self.path / "keys")
        about = {"run": run, "ledger": ledger_id, "configuration": self._digest(), "messages": VERSION}
        write_json(self.path / "run.json", about)

    def _digest(self) -> str:
        """Of the configuration, which a private run must not change on its way."""
        text = json.dumps(self._written().as_tables(), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def read_identity(self) -> tuple[str, KeyPair | None, str | None] | None:
        """What `write_identity` kept; None where the run was interrupted before it."""
        path, keys = self.path / "run.json", self.path / "keys"
        if not path.is_file() and not (self.path / "checkpoint.npz").is_file():
            shutil.rmtree(keys, ignore_errors=True)  # nothing was encrypted with them yet
            return None
        with readable(path, KeyError, TypeError):
            about = json.loads(path.read_text(encoding="utf-8"))
            run, ledger_id, digest = str(about["run"]), about["ledger"], about["configuration"]
        if not (self.path / "metrics.json").is_file():
            require_resumable(self.read_config().scheme, about.get("messages"))
        if ledger_id is not None and digest != self._digest():
            rule = "must be as it was when the private run was started"
            raise InputError("config.toml", rule, "changed", "Its ε was planned for it. Start a new run.")
        return run, KeyPair(load_client(keys), load_server(keys)) if keys.is_dir() else None, ledger_id

    def remove(self) -> None:
        """Forget a run that never began: every file and folder that was made for it, and nothing else."""
        if self._before is None:
            return
        for path in self.path.iterdir() if self.path.is_dir() else ():
            if path.name not in self._before:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for folder in self._new:  # innermost first; one that others have used since stays
            with suppress(OSError):
                folder.rmdir()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """While this process works on the run; another one is refused."""
        with (self.path / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise Refused(f"Another process is working on the run {str(self.path)!r}.") from None
            yield

    def write_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint at once; its history and absences go to the end of history.jsonl before."""
        if self._log is None and self.read_checkpoint() is None:
            self._log = _Log(self.path)
        log = self._log = self._log or _Log(self.path)
        log.extend(checkpoint.history, checkpoint.absent)
        size = _LogSize(log.file.size, log.file.digest)
        saved = _Saved(FORMAT, size, replace(checkpoint, history=(), absent=()))
        write_arrays(self.path / "checkpoint.npz", _checkpoints.to_arrays(saved))

    def read_checkpoint(self) -> Checkpoint | None:
        """The last whole checkpoint, if there is one."""
        path = self.path / "checkpoint.npz"
        if not path.is_file():
            return None
        damage = (BadZipFile, EOFError, KeyError, TypeError)
        with readable(path, *damage):
            saved = _checkpoints.from_arrays(read_arrays(path))
        log, checkpoint = _Log(self.path), saved.checkpoint
        if saved.log is not None:  # else the next checkpoint writes all of it to the log
            with readable(log.file.path, *damage):
                history, absent = log.read(saved.log.size, saved.log.digest)
            checkpoint = replace(checkpoint, history=history, absent=absent)
        self._log = log
        return checkpoint

    def write_results(self, metrics: Mapping[str, Any], history: Sequence[Row], model: Mapping[str, Any]) -> None:
        """history.csv, model.safetensors, privacy.json and, last, metrics.json: where it is, the run is complete."""
        content = weights_file(model)  # refused before anything is written
        columns = list(dict.fromkeys(name for row in history for name in row))
        buffer = io.StringIO(newline="")
        writer = csv.DictWriter(buffer, columns)
        writer.writeheader()
        writer.writerows(history)
        write_bytes(self.path / "history.csv", buffer.getvalue().encode())
        write_bytes(self.path / "model.safetensors", content)
        write_json(self.path / "privacy.json", metrics["privacy"])
        write_json(self.path / "metrics.json", metrics)


@contextmanager
def readable(path: Path, *damage: type[Exception]) -> Iterator[None]:
    """Turn what a missing or damaged file raises into an error that names it."""
    kinds: tuple[type[Exception], ...] = (OSError, ValueError, *damage)
    try:
        yield
    except InputError:
        raise
    except kinds as error:
        raise InputError(path.name, "must be whole and readable", str(path), f"({error})") from None
