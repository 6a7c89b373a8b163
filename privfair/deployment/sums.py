"""The sums of all rounds, on the server's disk: for clients that were away, and for whoever may open them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from privfair.codec import TREE, Arrays, Codec, with_tree
from privfair.fairness.tracking import SealedFeatures
from privfair.federated.exchange import ServerState
from privfair.federated.messages import Model, Sealed
from privfair.federated.round import ModelHolder
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
class _Kept:
    round: int
    features: SealedFeatures


_sums = Codec[Sealed](Sealed, "sum", what="sum", earlier=_earlier_sum)
_kept = Codec[_Kept](_Kept, "sum of features", what="sum of features", earlier=_earlier_features)


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
            write_arrays(self.folder / f"{number:06d}.npz", _kept.to_arrays(_Kept(number, found)))
        return found


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
