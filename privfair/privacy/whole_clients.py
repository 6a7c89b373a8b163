"""What whole clients pay: all records of one client are exchanged for as many others of the same groups and sets.

Counts are public, so two neighbouring federations have the same number of records in every cell of every client.

- Sums of features: the sum of a cell with n records moves by at most n times what one record can move it (pair the
  records). All cells of a client are one vector, which moves by at most that times √Σ n².
- Scores: whichever records were drawn, each of the m scores of a message may be another one, and moves by at most the
  range. Noise is drawn for each by itself: m releases, without any gain from sampling.
- Updates: see `mechanisms.update_release`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from accountant.events import Event, Nothing, Repeated
from accountant.neighbouring import Adjacency, Unit
from privfair.mechanisms.grid_noise import ScoreNoise
from privfair.mechanisms.vector_noise import VectorNoise


def vectors_moved(asked: NDArray[np.int64], counts: NDArray[np.int64]) -> float:
    """√Σ n² over the asked cells of one client, not rounded down."""
    squares = sum(int(n) ** 2 for n in np.asarray(counts)[np.asarray(asked) > 0])
    return math.nextafter(math.sqrt(squares), math.inf) if squares else 0.0


def features_event(noise: VectorNoise, asked: NDArray[np.int64], counts: NDArray[np.int64]) -> Event:
    """What one client's sums of features of one round cost it."""
    times = vectors_moved(asked, counts)
    return noise.event(Adjacency.REPLACE_ONE, Unit.CLIENT, times) if times else Nothing()


def scores_event(noise: ScoreNoise, scores: int) -> Event:
    """What so many noisy scores of one client cost it."""
    return Repeated(noise.event(Adjacency.REPLACE_ONE, Unit.CLIENT), scores) if scores else Nothing()
