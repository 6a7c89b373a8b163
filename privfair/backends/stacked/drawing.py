"""Which records' scores clients share, drawn as each alone would draw them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from privfair.arrays import FloatArray
from privfair.backends.stacked.holdings import data_of, seed_of
from privfair.clients.client import Client
from privfair.messages import ScoresRequest
from privfair.randomness import stream


@dataclass(frozen=True)
class Draw:
    """Positions of the records of all cells, one cell after the other, and their labels."""

    positions: NDArray[np.int64]
    labels: torch.Tensor
    sizes: tuple[int, ...]  # of the cells


def draw(client: Client, request: ScoresRequest) -> Draw:
    """A simple random sample of each cell."""
    rng, data = stream(seed_of(client), "scores", request.round, client.index), data_of(client)
    cells = []
    for cell, quota in enumerate(request.quotas):
        rows = np.flatnonzero(data.membership[:, cell])
        # fewer than asked for only where the server knows noisy counts, and scores without noise are told anyway
        cells.append(rng.choice(rows, size=min(int(quota), rows.size), replace=False))
    positions = np.concatenate(cells)
    return Draw(positions, data.y[torch.from_numpy(positions)], tuple(cell.size for cell in cells))


def split(scores: FloatArray, draws: Sequence[Draw]) -> Iterator[tuple[FloatArray, ...]]:
    """The scores of each draw, cell by cell; `scores` has those of all draws one after the other."""
    place = 0
    for each in draws:
        cells = []
        for size in each.sizes:
            cells.append(scores[place : place + size])
            place += size
        yield tuple(cells)
