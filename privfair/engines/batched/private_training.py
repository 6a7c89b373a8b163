"""DP-SGD of many clients by the compiled training, which computes each record by itself.

The random draws are the same, in the same order, as one client alone would make. What the compiled training cannot do
(other modules, tables that do not cover all scores) is left to each client, which does it with Opacus.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from privfair.channels.base import respond
from privfair.channels.updates import UPDATES, UpdatesChannel
from privfair.clients.client import Client, followed
from privfair.clients.opacus_engine import _DRAWS_AT_ONCE
from privfair.clients.training import _CHOICES_AT_ONCE, Trained, _checked, checked_gradient
from privfair.engines.batched.assembling import (
    Penalties,
    PrivateJob,
    can_be_fused,
    objective_key,
    sum_fused_gradients,
    train_fused_privately,
)
from privfair.engines.batched.lockstep import Failed, attempt
from privfair.engines.batched.networks import cut, rows_at_once
from privfair.engines.batched.record_pool import Order, shape_of
from privfair.engines.batched.training import TrainJob, update
from privfair.federated.messages import Parameters, PrivateWork, Reply, Tracked, TrainRequest
from privfair.mechanisms.entropy import Entropy, SeededEntropy
from privfair.per_record import VECTOR_LIBRARY, require_summable
from privfair.util import FloatArray

if TYPE_CHECKING:
    from privfair.engines.batched.engine import Engine


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


NO_NOISE: FloatArray = np.zeros((0, 0))
Asked = tuple[Client, TrainRequest]
Prepared = tuple[int, Client, TrainRequest, PrivateWork, Parameters, Any, Entropy]


def train_together(engine: Engine, asked: Sequence[Asked]) -> list[Reply | Failed]:
    """The update of each, trained together."""
    penalties, draws = Penalties(), Draws()
    results: list[Reply | Failed | None] = [None] * len(asked)
    groups: dict[tuple[Any, ...], list[Prepared]] = {}
    for number, (client, request) in enumerate(asked):
        at = client.replica.at(request.model)
        try:
            work = _checked(request) if request.gradient is None else checked_gradient(request, at.values.size)[0]
            require_summable(len(client.data.y))
        except Exception as error:  # noqa: BLE001 - it is raised again in its own run
            results[number] = Failed(error)
            continue
        data = client.data
        network = engine.networks.of(client.model, data.x.shape[1])
        about = (network and network.key, shape_of(client), data.task, data.cells.notion.score, work.optimizer)
        if isinstance(request.objective, Tracked):
            penalties.of_shared(followed(request.objective), data.cells)
        fused = network is not None and can_be_fused(network, request.objective, data, penalties)
        if not fused or VECTOR_LIBRARY:
            results[number] = attempt(respond, client, request)
            continue
        key = (*about, work.steps, request.gradient is None, *objective_key(request.objective, data))
        entropy = client.entropy(UPDATES, request.round)
        groups.setdefault(key, []).append(
            (number, client, request, work, at, UpdatesChannel().shift(request, client, at), entropy)
        )
    parts = [part for members in groups.values() for part in _parts(engine, members)]
    ends = engine.map(lambda part: _trained(engine, part, penalties, draws), parts)
    for part, trained in zip(parts, ends, strict=True):
        for (number, client, request, _, at, shift, entropy), end in zip(part, trained, strict=True):
            results[number] = attempt(update, request, client, at, shift, end, entropy)
    return [r for r in results if r is not None]


def _parts(engine: Engine, members: list[Prepared]) -> list[list[Prepared]]:
    """Jobs that go at once, alike in the expected size of a minibatch."""

    def rows(member: Prepared) -> int:
        return int(member[3].sampling_rate * engine.record_pool.of(member[1]).count) + 1

    network = engine.networks.of(members[0][1].model, members[0][1].data.x.shape[1])
    width = 1 if network is None else network.width
    most = rows_at_once(2 * width, sum(map(rows, members)), engine.threads)
    return list(cut(sorted(members, key=lambda m: -rows(m)), rows, most))


def _trained(engine: Engine, part: Sequence[Prepared], penalties: Penalties, draws: Draws) -> list[Trained]:
    jobs = []
    for _, client, request, work, at, shift, entropy in part:
        data, holding = client.data, engine.record_pool.of(client)
        network = engine.networks.of(client.model, data.x.shape[1])
        if network is None:
            raise TypeError("a model that cannot be stacked")
        if request.gradient is None:
            order, noise = draws.of(holding.count, at.values.size, work, entropy)
        else:  # the noise follows when the sum leaves
            order, noise = _order(entropy.poisson_mask(holding.count, work.sampling_rate)[None]), NO_NOISE
        job = TrainJob(
            request=request,
            start=at.values,
            shift=shift,
            data=data,
            pool=engine.record_pool.pool(client),
            offset=min(holding.offset, max(0, len(engine.record_pool.pool(client).rows) - 1)),
            network=network,
            order=order,
            key=(),
        )
        jobs.append(PrivateJob(job, noise, work))
    if part[0][2].gradient is not None:
        return sum_fused_gradients([p.job for p in jobs], penalties)
    return train_fused_privately(jobs, penalties)
