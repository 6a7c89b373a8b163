"""The folder of a run: configuration, checkpoint, history, model, metrics. Every file is whole or not there."""

from __future__ import annotations

import csv
import fcntl
import hashlib
import io
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import tomli_w

from accountant.errors import InputError, Refused
from accountant.storage import absolute_url, ledger_url
from privfair.aggregation import KeyPair, load_client, load_server
from privfair.arrays import FloatArray
from privfair.config import Config
from privfair.evaluation import Row
from privfair.interfaces import Absence
from privfair.messages import Evaluation
from privfair.storage import read_arrays, write_arrays, write_bytes, write_json
from privfair.terms import Terms

FORMAT = 3


@dataclass(frozen=True)
class Checkpoint:
    """All that a run needs to go on after a round as if nothing had happened."""

    identity: str
    round: int
    terms: Terms
    algorithm: Mapping[str, FloatArray]
    replica: Mapping[str, FloatArray]
    client_state: Mapping[str, FloatArray]
    history: tuple[Row, ...]
    bytes_up: int
    bytes_down: int
    seconds: float
    ledger_rows: int = 0  # of this run, when the checkpoint was made
    released: tuple[Evaluation, ...] | None = None  # the final noisy counts: asked for once
    uncounted: tuple[int, ...] = ()
    absent: tuple[Absence, ...] = ()


class RunDirectory:
    """One run on disk."""

    def __init__(self, path: Path) -> None:
        """Nothing is touched yet."""
        self.path = path

    @staticmethod
    def create(path: Path, config: Config) -> RunDirectory:
        """A new run; refuses a folder that already holds something."""
        tables = config.as_tables()
        if isinstance(tables["data"].get("path"), str):  # the run can be resumed from any folder
            tables["data"]["path"] = str(Path(tables["data"]["path"]).resolve())
        if config.privacy.enabled:  # and to one ledger it belongs
            tables["run"]["ledger"] = absolute_url(ledger_url(config.run.ledger))
        try:
            if path.exists() and not (path.is_dir() and all(p.name.startswith(".") for p in path.iterdir())):
                raise InputError("--out", "must be a new or empty folder", str(path), "Use --resume to continue a run.")
            write_bytes(path / "config.toml", tomli_w.dumps(tables).encode())
        except OSError as error:
            raise InputError("--out", f"must be a folder that can be written ({error.strerror})", str(path)) from None
        return RunDirectory(path)

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
        """The run's resolved configuration."""
        return Config.read(self.path / "config.toml")

    def read_metrics(self) -> dict[str, Any]:
        """The final figures; they are written last, so a run that has them is complete."""
        path = self.path / "metrics.json"
        if not path.is_file():
            raise InputError("run", "must be finished", str(self.path), "Continue it with --resume.")
        with _readable(path):
            return dict(json.loads(path.read_text(encoding="utf-8")))

    def read_model(self) -> dict[str, Any]:
        """The weights of the trained model, by name."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        path = self.path / "model.safetensors"
        with _readable(path, SafetensorError):
            return dict(load_file(path))

    def write_identity(self, run: str, keys: KeyPair | None, ledger_id: str | None) -> None:
        """Keep the run's name, its ledger's, a digest of its configuration and, where it has its own, its keys."""
        if keys is not None:
            unfinished = self.path / "keys.unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            keys.save(unfinished)
            unfinished.rename(self.path / "keys")
        about = {"run": run, "ledger": ledger_id, "configuration": self._digest()}
        write_json(self.path / "run.json", about)

    def _digest(self) -> str:
        """Of the configuration, which a private run must not change on its way."""
        text = json.dumps(self.read_config().as_tables(), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def read_identity(self) -> tuple[str, KeyPair | None, str | None] | None:
        """What `write_identity` kept; None where the run was interrupted before it."""
        path, keys = self.path / "run.json", self.path / "keys"
        if not path.is_file():
            shutil.rmtree(keys, ignore_errors=True)  # nothing was encrypted with them yet
            return None
        with _readable(path, KeyError):
            about = json.loads(path.read_text(encoding="utf-8"))
            run, ledger_id, digest = str(about["run"]), about["ledger"], about["configuration"]
        if ledger_id is not None and digest != self._digest():
            rule = "must be as it was when the private run was started"
            raise InputError("config.toml", rule, "changed", "Its ε was planned for it. Start a new run.")
        return run, KeyPair(load_client(keys), load_server(keys)) if keys.is_dir() else None, ledger_id

    def remove(self) -> None:
        """Forget a run that never began."""
        shutil.rmtree(self.path)

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
        """Replace the checkpoint at once."""
        about = {
            "format": FORMAT,
            "identity": checkpoint.identity,
            "round": checkpoint.round,
            "terms": checkpoint.terms.to_json(),
            "history": checkpoint.history,
            "bytes_up": checkpoint.bytes_up,
            "bytes_down": checkpoint.bytes_down,
            "seconds": checkpoint.seconds,
            "ledger_rows": checkpoint.ledger_rows,
            "uncounted": checkpoint.uncounted,
            "absent": [asdict(absence) for absence in checkpoint.absent],
            "released": checkpoint.released and [[t.tolist() for t in e.confusion] for e in checkpoint.released],
        }
        arrays: dict[str, Any] = {"about": np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)}
        for prefix, memory in (
            ("algorithm", checkpoint.algorithm), ("replica", checkpoint.replica), ("client", checkpoint.client_state)
        ):  # fmt: skip
            arrays |= {f"{prefix}/{name}": array for name, array in memory.items()}
        write_arrays(self.path / "checkpoint.npz", arrays)

    def read_checkpoint(self) -> Checkpoint | None:
        """The last whole checkpoint, if there is one."""
        path = self.path / "checkpoint.npz"
        if not path.is_file():
            return None
        with _readable(path, BadZipFile, EOFError, KeyError):
            arrays = read_arrays(path)
            about = json.loads(arrays["about"].tobytes())
        if about["format"] != FORMAT:
            raise InputError("checkpoint", f"must be of format {FORMAT}", about["format"])

        def memory(prefix: str) -> dict[str, FloatArray]:
            return {n.removeprefix(f"{prefix}/"): a for n, a in arrays.items() if n.startswith(f"{prefix}/")}

        return Checkpoint(
            identity=about["identity"],
            round=about["round"],
            terms=Terms.from_json(about["terms"]),
            algorithm=memory("algorithm"),
            replica=memory("replica"),
            client_state=memory("client"),
            history=tuple(about["history"]),
            bytes_up=about["bytes_up"],
            bytes_down=about["bytes_down"],
            seconds=about["seconds"],
            ledger_rows=about["ledger_rows"],
            uncounted=tuple(about["uncounted"]),
            absent=tuple(Absence(**absence) for absence in about["absent"]),
            released=about["released"]
            and tuple(Evaluation(tuple(np.array(t, dtype=np.int64) for t in e)) for e in about["released"]),
        )

    def write_results(self, metrics: Mapping[str, Any], history: Sequence[Row], model: Mapping[str, Any]) -> None:
        """history.csv, model.safetensors, privacy.json and, last, metrics.json: where it is, the run is complete."""
        from safetensors.torch import save

        columns = list(dict.fromkeys(name for row in history for name in row))
        buffer = io.StringIO(newline="")
        writer = csv.DictWriter(buffer, columns)
        writer.writeheader()
        writer.writerows(history)
        write_bytes(self.path / "history.csv", buffer.getvalue().encode())
        write_bytes(self.path / "model.safetensors", save(dict(model)))
        write_json(self.path / "privacy.json", metrics["privacy"])
        write_json(self.path / "metrics.json", metrics)


@contextmanager
def _readable(path: Path, *damage: type[Exception]) -> Iterator[None]:
    """Turn what a missing or damaged file raises into an error that names it."""
    kinds: tuple[type[Exception], ...] = (OSError, ValueError, *damage)
    try:
        yield
    except kinds as error:
        raise InputError(path.name, "must be whole and readable", str(path), f"({error})") from None
