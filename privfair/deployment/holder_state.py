"""What a data holder remembers of a run between messages: in its own folder, whole or not there at all."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accountant.errors import InputError
from privfair.config import Config
from privfair.datasets.records import ClientData, Federation
from privfair.datasets.registry import load as load_dataset
from privfair.federated.interfaces import Memory
from privfair.federated.release_plan import ReleasePlan
from privfair.secure_aggregation import VERSION
from privfair.util import FloatArray, read_arrays, write_arrays

FILE = "state.npz"


@dataclass(frozen=True)
class HolderState:
    """All of it, as of the last answer.

    `asked`: the digest of the request in each place (channel and round). `answers`: what was answered there, where no
    ledger keeps it. `counts`: those that were told, as their message.
    """

    ledger_id: str | None = None
    messages: int = VERSION  # the version of encrypted messages with which the run was begun
    rows: int = 0  # of this holder and run in its ledger
    release_plan: ReleasePlan | None = None
    replica: Memory | None = None
    control: FloatArray | None = None
    counts: bytes | None = None
    left: str = ""  # why the holder answers no more in this run, if so
    asked: dict[str, str] = field(default_factory=dict)
    answers: dict[str, bytes] = field(default_factory=dict)

    def with_answer(self, place: str, message: bytes) -> HolderState:
        """With one answer more."""
        return replace(self, answers={**self.answers, place: message})


def read(folder: Path) -> HolderState | None:
    """What the folder of a run holds; None if the run is not known."""
    path = folder / FILE
    if not path.is_file():
        return None
    arrays = read_arrays(path)
    about = json.loads(arrays["about"].tobytes())

    def part(prefix: str) -> dict[str, NDArray[Any]]:
        return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}

    return HolderState(
        ledger_id=about["ledger_id"],
        messages=about.get("messages", 0),
        rows=about["rows"],
        release_plan=about["terms"] and ReleasePlan.from_json(about["terms"]),
        replica=part("replica/") or None,
        control=arrays.get("control"),
        counts=arrays["counts"].tobytes() if "counts" in arrays else None,
        left=about["left"],
        asked=about["asked"],
        answers={place: array.tobytes() for place, array in part("answer/").items()},
    )


def write(folder: Path, memory: HolderState) -> None:
    """Replace what is remembered, at once."""
    about = {
        "ledger_id": memory.ledger_id,
        "messages": memory.messages,
        "rows": memory.rows,
        "terms": memory.release_plan and memory.release_plan.to_json(),
        "left": memory.left,
        "asked": memory.asked,
    }
    arrays: dict[str, NDArray[Any]] = {"about": np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)}
    arrays |= {f"replica/{name}": values for name, values in (memory.replica or {}).items()}
    arrays |= {f"answer/{place}": np.frombuffer(message, np.uint8) for place, message in memory.answers.items()}
    if memory.control is not None:
        arrays["control"] = memory.control
    if memory.counts is not None:
        arrays["counts"] = np.frombuffer(memory.counts, np.uint8)
    write_arrays(folder / FILE, arrays)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """While this process answers for the holder; another one waits."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# ---- What a data holder has of its own: its records.


def own_records(config: Config, name: str) -> Federation:
    """The data of one holder: its part of a dataset, or the whole of a file without a client column."""
    data = config.data
    found = load_dataset(data.name, seed=config.run.seed, test_fraction=data.test_fraction, **data.options)
    parts = {client.name: client for client in found.clients}
    if data.name == "csv" and data.options.get("client") is None:
        whole = found.clients[0]
        parts = {name: ClientData(name, whole.train, whole.test)}
    if name not in parts:
        raise InputError("client", "must have records in the data", name)
    return replace(found, clients=(parts[name],))
