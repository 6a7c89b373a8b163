"""What a data holder remembers of a run between messages: in its own folder, whole or not there at all."""

from __future__ import annotations

import fcntl
import json
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from accountant.errors import InputError
from privfair.codec import TREE, Arrays, Codec, FloatArray, Payload, with_tree
from privfair.config import Config
from privfair.datasets.records import ClientData, Federation
from privfair.datasets.registry import load as load_dataset
from privfair.federated.exchange import Memory
from privfair.federated.release_plan import ReleasePlan
from privfair.secure_aggregation import VERSION
from privfair.secure_aggregation.masks import KeptMasks
from privfair.util import read_arrays, write_arrays

FILE = "state.npz"


@dataclass(frozen=True)
class HolderState:
    """All of it, as of the last answer.

    `asked`: the digest of the request in each place (channel and round); "" where an earlier version wrote
    it. `answers`: what was answered there, where no ledger keeps it. `counts`: those that were reported, as a message.
    """

    ledger_id: str | None = None
    messages: int = VERSION  # the version of encrypted messages with which the run was begun
    rows: int = 0  # of this holder and run in its ledger
    release_plan: ReleasePlan | None = None
    replica: Memory | None = None
    control: FloatArray | None = None
    counts: Payload | None = None
    left: str = ""  # why the holder answers no more in this run, if so
    asked: dict[str, str] = field(default_factory=dict)
    answers: dict[str, Payload] = field(default_factory=dict)

    def with_answer(self, place: str, message: bytes) -> HolderState:
        """With one answer more."""
        return replace(self, answers={**self.answers, place: message})


def _earlier(arrays: Arrays) -> Arrays:
    """The state as versions up to 0.2 wrote it. Of requests they kept digests of other bytes: "" stands for them."""
    about = json.loads(arrays[TREE].tobytes())
    if "terms" not in about:
        return arrays

    def part(prefix: str) -> dict[str, str]:
        return {name.removeprefix(prefix): name for name in arrays if name.startswith(prefix)}

    single = {name: name for name in ("control", "counts") if name in arrays}
    state = {"messages": 0, **about, **single, "replica": part("replica/") or None, "answers": part("answer/")}
    state |= {"release_plan": state.pop("terms"), "asked": dict.fromkeys(about["asked"], "")}
    return with_tree(arrays, state)


_states = Codec[HolderState](HolderState, "state of a data holder", what=FILE, earlier=_earlier)


def read(folder: Path) -> HolderState | None:
    """What the folder of a run holds; None if the run is not known."""
    path = folder / FILE
    return _states.from_arrays(read_arrays(path)) if path.is_file() else None


def write(folder: Path, memory: HolderState) -> None:
    """Replace what is remembered, at once."""
    write_arrays(folder / FILE, _states.to_arrays(memory))


# ---- Masks: what a data holder alone may know, in a file for its owner alone.

MASKS = "masks.npz"
_masks = Codec[KeptMasks](KeptMasks, "masks of a data holder", what=MASKS)


def read_masks(folder: Path) -> KeptMasks:
    """The keys and shares of the masks of a run; a file that others can read is refused."""
    path = folder / MASKS
    if not path.is_file():
        return KeptMasks()
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        rule = "must be readable by its owner only (mode 0600)"
        raise InputError(str(path), rule, f"{mode:04o}", "Others may have copied it: leave this run, begin another.")
    return _masks.from_arrays(read_arrays(path))


def write_masks(folder: Path, masks: KeptMasks) -> None:
    """Replace them, at once."""
    write_arrays(folder / MASKS, _masks.to_arrays(masks), secret=True)


def forget_masks(folder: Path) -> None:
    """Delete them: this data holder masks and answers nothing more in the run."""
    (folder / MASKS).unlink(missing_ok=True)


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
