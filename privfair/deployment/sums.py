"""The sums of all rounds, on the server's disk: for clients that were away, and for whoever may open them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from privfair.fairness.tracking import SealedFeatures
from privfair.federated.interfaces import ServerState
from privfair.federated.messages import Model, Sealed
from privfair.federated.round import ModelHolder
from privfair.util import read_arrays, write_arrays


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
        arrays = read_arrays(path)
        step = float(arrays["step"][0]) if "step" in arrays else 1.0  # sums of earlier versions have none
        return Sealed(number, arrays["total"].tobytes(), float(arrays["share"][0]), step)

    def keep(self, number: int, total: bytes, share: float, step: float = 1.0) -> Sealed:
        """The sum of this number: the one given, or the one that is there.

        There is one where the server stopped before it wrote down the end of the round. Clients may have seen that sum
        and taken its step, so it stays what it was.
        """
        known = self.get(number)
        if known is None:
            numbers = {"share": np.array([share]), "step": np.array([step])}
            write_arrays(self._path(number), {"total": np.frombuffer(total, dtype=np.uint8), **numbers})
        return known or Sealed(number, total, share, step)


@dataclass(frozen=True)
class FeatureSum:
    """The last sum of features, on the server's disk before anybody sees it.

    A server that stops in the middle of a round has told that sum to some. If it asked again, somebody might be away:
    two sums of the same vectors, one without that client's, tell its own, with no more noise than its share.
    """

    path: Path

    def kept(self, number: int, make: Callable[[], SealedFeatures]) -> SealedFeatures:
        """The sum of this round: the one that is written down, or a new one, which then is."""
        if self.path.is_file():
            arrays = read_arrays(self.path)
            if int(arrays["round"][0]) == number:
                return SealedFeatures(
                    kernel=arrays["kernel"].tobytes().decode(),
                    strength=float(arrays["strength"][0]),
                    total=arrays["total"].tobytes(),
                    shares=arrays["shares"],
                    counts=arrays["counts"],
                    records=float(arrays["records"][0]),
                )
        made = make()
        single = {"round": number, "strength": made.strength, "records": made.records}
        text = {"kernel": made.kernel.encode(), "total": made.total}
        write_arrays(
            self.path,
            {
                **{name: np.array([value]) for name, value in single.items()},
                **{name: np.frombuffer(value, dtype=np.uint8) for name, value in text.items()},
                "shares": made.shares,
                "counts": made.counts,
            },
        )
        return made


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
        kept = self.sums.keep(self.count + 1, total, share, state.release_plan.sum_step)
        model = self.inner.step(state, kept.total, kept.share)
        self.count += 1
        return model
