"""The folder of a run: configuration, checkpoint, history, model, metrics. Every file is whole or not there."""

from __future__ import annotations

import csv
import io
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from accountant.errors import InputError
from privfair.arrays import FloatArray
from privfair.config import Config
from privfair.evaluation import Row
from privfair.interfaces import ServerState
from privfair.storage import read_arrays, write_arrays, write_bytes, write_json

FORMAT = 1


@dataclass(frozen=True)
class Checkpoint:
    """All that a run needs to go on after a round as if nothing had happened."""

    state: ServerState
    client_state: Mapping[str, FloatArray]
    history: tuple[Row, ...]
    bytes_up: int
    bytes_down: int
    seconds: float


class RunDirectory:
    """One run on disk."""

    def __init__(self, path: Path) -> None:
        """Nothing is touched yet."""
        self.path = path

    @staticmethod
    def create(path: Path, config: Config) -> RunDirectory:
        """A new run; refuses a folder that already holds something."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise InputError("--out", "must be a new or empty folder", str(path), "Use --resume to continue a run.")
        directory = RunDirectory(path)
        write_bytes(path / "config.toml", tomli_w.dumps(config.as_tables()).encode())
        return directory

    @staticmethod
    def open(path: Path) -> RunDirectory:
        """An existing run."""
        if not (path / "config.toml").is_file():
            raise InputError("run", "must be the folder of a run, with a config.toml in it", str(path))
        return RunDirectory(path)

    def read_config(self) -> Config:
        """The run's resolved configuration."""
        return Config.build(tomllib.loads((self.path / "config.toml").read_text(encoding="utf-8")))

    def write_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint at once."""
        state = checkpoint.state
        about = {
            "format": FORMAT,
            "round": state.round,
            "history": checkpoint.history,
            "bytes_up": checkpoint.bytes_up,
            "bytes_down": checkpoint.bytes_down,
            "seconds": checkpoint.seconds,
        }
        arrays: dict[str, Any] = {
            "about": np.frombuffer(json.dumps(about).encode(), dtype=np.uint8),
            "parameters": state.parameters,
            "records": state.records,
            "cells": state.cells,
        }
        for prefix, memory in (
            ("algorithm", state.algorithm), ("optimizer", state.optimizer), ("client", checkpoint.client_state)
        ):  # fmt: skip
            arrays |= {f"{prefix}/{name}": array for name, array in memory.items()}
        write_arrays(self.path / "checkpoint.npz", arrays)

    def read_checkpoint(self) -> Checkpoint | None:
        """The last whole checkpoint, if there is one."""
        path = self.path / "checkpoint.npz"
        if not path.is_file():
            return None
        arrays = read_arrays(path)
        about = json.loads(arrays["about"].tobytes())
        if about["format"] != FORMAT:
            raise InputError("checkpoint", f"must be of format {FORMAT}", about["format"])

        def memory(prefix: str) -> dict[str, FloatArray]:
            return {n.removeprefix(f"{prefix}/"): a for n, a in arrays.items() if n.startswith(f"{prefix}/")}

        state = ServerState(
            about["round"], arrays["parameters"], arrays["records"], arrays["cells"],
            memory("algorithm"), memory("optimizer"),
        )  # fmt: skip
        return Checkpoint(
            state, memory("client"), tuple(about["history"]), about["bytes_up"], about["bytes_down"], about["seconds"]
        )

    def write_results(self, metrics: Mapping[str, Any], history: Sequence[Row], model: Mapping[str, Any]) -> None:
        """history.csv, model.safetensors and, last, metrics.json: where it is, the run is complete."""
        from safetensors.torch import save

        columns = list(dict.fromkeys(name for row in history for name in row))
        buffer = io.StringIO(newline="")
        writer = csv.DictWriter(buffer, columns)
        writer.writeheader()
        writer.writerows(history)
        write_bytes(self.path / "history.csv", buffer.getvalue().encode())
        write_bytes(self.path / "model.safetensors", save(dict(model)))
        write_json(self.path / "metrics.json", metrics)
