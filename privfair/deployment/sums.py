"""The sums of all rounds, on the server's disk: for clients that were away, and for whoever may open them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from privfair.clients.client import Embedder
from privfair.codec import TREE, Arrays, Codec, with_tree
from privfair.deployment.protocol import Value, byte_parts
from privfair.fairness.tracking import SealedFeatures
from privfair.federated.exchange import ServerState
from privfair.federated.messages import Model, Sealed
from privfair.federated.model_state import Replica
from privfair.federated.round import ModelHolder
from privfair.federated.secure_sums import Block, MaskMemory, NamedSum
from privfair.util import read_arrays, write_arrays


def _earlier_sum(arrays: Arrays) -> Arrays:
    """A sum as versions up to 0.2 wrote it: its number is that of its file, and the first had no step."""
    if TREE in arrays:
        return arrays
    about: dict[str, object] = {"round": 0, "total": "total"}
    about |= {name: float(arrays[name][0]) for name in ("share", "step") if name in arrays}
    return with_tree(arrays, about)


def _earlier_features(arrays: Arrays) -> Arrays:
    """A sum of features as versions up to 0.2 wrote it."""
    if TREE in arrays:
        return arrays
    numbers = {name: float(arrays[name][0]) for name in ("strength", "records")}
    names = {name: name for name in ("total", "shares", "counts")}
    features = {"kernel": arrays["kernel"].tobytes().decode(), **numbers, **names}
    return with_tree(arrays, {"round": int(arrays["round"][0]), "features": features})


@dataclass(frozen=True)
class NumberedFeatures:
    """A sum of features, and the round whose training follows it."""

    round: int
    features: SealedFeatures


_sums = Codec[Sealed](Sealed, "sum", what="sum", earlier=_earlier_sum)
_kept = Codec[NumberedFeatures](NumberedFeatures, "sum of features", what="sum of features", earlier=_earlier_features)


class Sums:
    """A folder of sums, numbered from 1."""

    def __init__(self, folder: Path) -> None:
        """Made when the first sum is kept."""
        self._folder = folder

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:06d}.npz"

    def get(self, number: int) -> Sealed | None:
        """A sum, if it is there."""
        path = self._path(number)
        if not path.is_file():
            return None
        return replace(_sums.from_arrays(read_arrays(path)), round=number)

    def keep(self, number: int, total: bytes, share: float, step: float = 1.0) -> Sealed:
        """The sum of this number: the one given, or the one that is there.

        There is one where the server stopped before it wrote down the end of the round. Clients may have seen that sum
        and taken its step, so it stays what it was.
        """
        known = self.get(number)
        if known is None:
            known = Sealed(number, total, share, step)
            write_arrays(self._path(number), _sums.to_arrays(known))
        return known


@dataclass(frozen=True)
class FeatureSums:
    """The sum of features of every round, on the server's disk before anybody sees it.

    A server that stops in the middle of a round has sent that sum to some clients. If it asked again, somebody
    might be away: two sums of the same vectors, one without that client's, tell its own, with no more noise than
    its share. Sums of rounds that are over stay, for clients that were away; where the features are in a sum of
    updates (`SealedFeatures.within`), that sum is among the others.
    """

    folder: Path

    def get(self, number: int) -> SealedFeatures | None:
        """The sum that the training of this round follows, if it is there."""
        paths = (self.folder / f"{number:06d}.npz", self.folder.with_suffix(".npz"))  # the latter up to version 0.2
        for path in paths:
            if path.is_file() and (kept := _kept.from_arrays(read_arrays(path))).round == number:
                return kept.features
        return None

    def kept(self, number: int, make: Callable[[], SealedFeatures]) -> SealedFeatures:
        """The sum of this round: the one that is written down, or a new one, which then is."""
        found = self.get(number)
        if found is None:
            found = make()
            write_arrays(self.folder / f"{number:06d}.npz", _kept.to_arrays(NumberedFeatures(number, found)))
        return found

    def since(self, number: int) -> list[NumberedFeatures]:
        """The sums of this round and of those after it, as far as there are any."""
        found = []
        while (features := self.get(number)) is not None:
            found.append(NumberedFeatures(number, features))
            number += 1
        return found

    def follow(self, replica: Replica, embedder: Embedder | None) -> None:
        """Open the sums that λ follows and has not yet, where it follows a target."""
        if replica.controller is None or embedder is None:
            return
        for one in self.since(replica.controller.round):
            if one.features.within in (None, replica.round):
                embedder.open(one.features, one.round, replica)


_numbered = Codec[NumberedFeatures](NumberedFeatures, "sum of features")
pack_feature = _numbered.encode


def read_features(envelope: Mapping[str, Value]) -> list[NumberedFeatures]:
    """The sums of features of a message, in their order; none where λ follows no target."""
    parts = byte_parts(envelope, "features") if "features" in envelope else []
    return sorted((_numbered.decode(part) for part in parts), key=lambda one: one.round)


_blocks = Codec[Block](Block, "block of masked sums", what="block")
_named = Codec[NamedSum](NamedSum, "masked sum", what="masked sum")


class MasksOnDisk(MaskMemory):
    """What the server knows of masks, on its disk before anybody is asked for more.

    Its process may be killed between any two messages. Holders sign one roster for a block and answer for one set of
    survivors, so a server that forgot what it had named would open nothing.
    """

    def __init__(self, folder: Path) -> None:
        """Made when something is kept."""
        self._folder = folder

    def block(self, number: int) -> Block:
        """How far this block is prepared."""
        path = self._path("block", number)
        return _blocks.from_arrays(read_arrays(path)) if path.is_file() else Block(number)

    def named(self, number: int) -> NamedSum | None:
        """The sum of this number, if its survivors are named."""
        path = self._path("sum", number)
        return _named.from_arrays(read_arrays(path)) if path.is_file() else None

    def keep(self, state: Block | NamedSum) -> None:
        """Write it down; a sum lasts until the next but one is named, when its result is in other files."""
        if isinstance(state, Block):
            write_arrays(self._path("block", state.number), _blocks.to_arrays(state))
            return
        write_arrays(self._path("sum", state.number), _named.to_arrays(state))
        for path in sorted(self._folder.glob("sum-*.npz"))[:-2]:
            path.unlink()

    def _path(self, kind: str, number: int) -> Path:
        return self._folder / f"{kind}-{number:06d}.npz"


@dataclass
class Recorded:
    """A keeper whose sums are all written down before their step is taken."""

    inner: ModelHolder
    sums: Sums
    count: int = 0  # sums so far

    def first(self) -> Model:
        """As the keeper's."""
        return self.inner.first()

    def step(self, state: ServerState, total: bytes, share: float) -> Model:
        """As the keeper's, on the sum that is written down."""
        kept = self.sums.keep(self.count + 1, total, share, state.release_plan.sum_step(state.round))
        model = self.inner.step(state, kept.total, kept.share)
        self.count += 1
        return model
