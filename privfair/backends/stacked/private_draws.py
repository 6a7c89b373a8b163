"""The random draws of a round of DP-SGD: the same, in the same order, as one client alone would make."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from privfair.arrays import FloatArray
from privfair.backends.stacked.minibatches import Order
from privfair.clients.dp_sgd import _CHOICES_AT_ONCE
from privfair.clients.opacus_engine import _DRAWS_AT_ONCE
from privfair.mechanisms.entropy import Entropy, SeededEntropy
from privfair.messages import PrivateWork


class Draws:
    """Draws by what they depend on: with seeded noise, runs of one seed that differ in λ only have the same ones.

    Draws from the operating system are every client's own, always.
    """

    def __init__(self) -> None:
        """None yet."""
        self._known: dict[tuple[Any, ...], tuple[Order, FloatArray]] = {}

    def of(self, records: int, size: int, work: PrivateWork, entropy: Entropy) -> tuple[Order, FloatArray]:
        """As `private_draws`; `entropy` is fresh, and used for nothing else."""
        if not isinstance(entropy, SeededEntropy):
            return private_draws(records, size, work, entropy)
        scale = work.noise_multiplier * work.max_grad_norm
        key = (str(entropy.rng.bit_generator.state), records, size, work.steps, work.sampling_rate, scale)
        if key not in self._known:
            self._known[key] = private_draws(records, size, work, entropy)
        return self._known[key]


def private_draws(records: int, size: int, work: PrivateWork, entropy: Entropy) -> tuple[Order, FloatArray]:
    """Each step's minibatch, every record in it with probability q, and its noise (steps, size), scaled."""
    choices, noises = max(1, _CHOICES_AT_ONCE // max(1, records)), max(1, _DRAWS_AT_ONCE // size)
    scale = work.noise_multiplier * work.max_grad_norm
    masks: list[NDArray[np.bool_]] = []
    noise: list[FloatArray] = []
    for step in range(work.steps):
        if step % choices == 0:
            count = min(choices, work.steps - step)
            masks.append(entropy.poisson_mask(count * records, work.sampling_rate).reshape(count, records))
        if step % noises == 0:
            count = min(noises, work.steps - step)
            noise.append(scale * entropy.normal(count * size).reshape(count, size))
    if not work.steps:
        return Order(np.zeros((0, 1), dtype=np.int64), np.zeros(0, dtype=np.int64)), np.zeros((0, size))
    return _order(np.concatenate(masks)), np.concatenate(noise)


def _order(masks: NDArray[np.bool_]) -> Order:
    """The positions of the chosen records, row by row."""
    sizes = masks.sum(axis=1)
    steps, chosen = np.divmod(np.flatnonzero(masks), masks.shape[1])
    positions = np.zeros((len(masks), max(1, int(sizes.max()))), dtype=np.int64)
    places = np.arange(steps.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    positions[steps, places] = chosen
    return Order(positions, sizes)
