"""Random streams by name: the same seed and labels give the same numbers, whoever asks and in whatever order."""

from __future__ import annotations

import zlib

import numpy as np


def stream(seed: int, *labels: str | int) -> np.random.Generator:
    """The generator of this seed for this purpose, for example `stream(seed, "minibatches", round, client)`.

    Streams of different labels are independent (numpy's SeedSequence with the labels as its spawn key), so clients
    can run in any order or in parallel, and a resumed run needs no generator state.
    """
    key = tuple(zlib.crc32(label.encode()) if isinstance(label, str) else label for label in labels)
    return np.random.default_rng(np.random.SeedSequence(entropy=seed, spawn_key=key))
