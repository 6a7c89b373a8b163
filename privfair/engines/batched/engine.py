"""Answers the requests of many clients of many runs together; what cannot be batched is answered one by one.

A simulation's engine stands in for its clients, so it reads their records, models and random streams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from accountant.errors import InputError
from privfair.channels.base import channel_of, respond
from privfair.channels.evaluation import MEASURES as LOCAL_FIGURES
from privfair.channels.features import EMBEDDINGS, FeaturesChannel
from privfair.channels.scores import PREDICTIONS
from privfair.channels.updates import UPDATES, UpdatesChannel
from privfair.clients.client import MEASURES, Client, couples_records, followed, measured
from privfair.clients.training import _CHOICES_AT_ONCE, NORMALS_AT_ONCE, Trained, _checked, checked_gradient
from privfair.engines.batched.assembling import (
    Penalties,
    PrivateJob,
    can_be_fused,
    objective_key,
    rule_for,
    sum_fused_gradients,
    train_fused,
    train_fused_privately,
)
from privfair.engines.batched.lockstep import Failed, attempt
from privfair.engines.batched.networks import ForwardJob, Networks, cut, free_numbers, outputs_of, rows_at_once
from privfair.engines.batched.record_pool import Draw, Order, Orders, RecordPool, draw, shape_of, split
from privfair.engines.batched.training import TrainJob, train_stack, update
from privfair.federated.messages import (
    LocalWork,
    MeasureRequest,
    Measures,
    Parameters,
    PrivateWork,
    Reply,
    Request,
    Reweighted,
    Scores,
    ScoresRequest,
    Tracked,
    TrainRequest,
)
from privfair.mechanisms.entropy import Entropy, SeededEntropy
from privfair.per_record import VECTOR_LIBRARY, require_summable
from privfair.util import FloatArray

Asked = tuple[Client, Request]
T = TypeVar("T")
S = TypeVar("S")


class Engine:
    """The batched program of a set of clients."""

    def __init__(self, clients: Sequence[Client], *, threads: int = 1) -> None:
        """Gather their records."""
        self.record_pool, self.networks = RecordPool(clients), Networks()
        self.threads = threads
        self._workers = ThreadPoolExecutor(threads, initializer=_alone) if threads > 1 else None

    def close(self) -> None:
        """Let the threads go."""
        if self._workers is not None:
            self._workers.shutdown()

    def map(self, work: Callable[[T], S], parts: Sequence[T]) -> list[S]:
        """`work` on every part, on all threads."""
        return list(map(work, parts) if self._workers is None else self._workers.map(work, parts))

    def replies(self, asked: Sequence[Asked]) -> list[Reply | Failed]:
        """The reply to each request, or the error that it met."""
        self.record_pool.refresh()
        results: list[Reply | Failed | None] = [None] * len(asked)
        asked = [(client, channel_of(request).opened(request, client)) for client, request in asked]
        kinds: dict[str, list[int]] = {}
        for number, (client, request) in enumerate(asked):
            kinds.setdefault(self._kind(client, request), []).append(number)
        answers: dict[str, Callable[[list[Any]], Sequence[Reply | Failed]]] = {
            "train": self._trained,
            "private": self._trained_privately,
            PREDICTIONS: self._scores,
            EMBEDDINGS: self._embeddings,
            LOCAL_FIGURES: self._measured,
            "alone": lambda them: [attempt(respond, client, request) for client, request in them],
        }
        for kind, numbers in kinds.items():
            for number, reply in zip(numbers, answers[kind]([asked[n] for n in numbers]), strict=True):
                results[number] = reply
        return [r for r in results if r is not None]

    def _kind(self, client: Client, request: Request) -> str:
        channel = request.channel
        if channel in (PREDICTIONS, EMBEDDINGS) and getattr(request, "release", None) is not None:
            return "alone"  # each record by itself: a batched product would round it by what stands beside it
        if channel not in (UPDATES, PREDICTIONS, EMBEDDINGS, LOCAL_FIGURES):
            return "alone"
        if self.networks.of(client.model, client.data.x.shape[1]) is None:
            return "alone"
        if isinstance(request, TrainRequest):
            coupled = couples_records(request.objective) is not None or isinstance(request.objective, Reweighted)
            plain = isinstance(request.work, LocalWork) and request.gradient is None
            return "train" if plain else "alone" if coupled else "private"
        if isinstance(request, MeasureRequest) and set(request.quantities) - set(MEASURES):
            return "alone"
        return channel

    # ---- training ----

    def _trained(self, asked: list[tuple[Client, TrainRequest]]) -> list[Reply | Failed]:
        orders, penalties = Orders(), Penalties()
        at = [client.replica.at(request.model) for client, request in asked]
        shifts = [UpdatesChannel().shift(r, c, a) for (c, r), a in zip(asked, at, strict=True)]
        trained: dict[int, Trained] = {}
        groups: dict[tuple[Any, ...], list[tuple[int, TrainJob]]] = {}
        for number, (client, request) in enumerate(asked):
            if not len(client.data.y):  # nothing to learn from: no step
                trained[number] = Trained(at[number].values, 0, None)
                continue
            job = self._job(client, request, at[number], shifts[number], orders)
            if isinstance(request.objective, Tracked):
                penalties.of(job)
            fused = can_be_fused(job.network, request.objective, job.data, penalties)
            groups.setdefault((fused, *job.key), []).append((number, job))
        parts = []
        for (fused, *_), members in groups.items():
            parts += [(fused, part) for part in (_shares if fused else _parts)(members, self.threads)]

        def work(share: tuple[bool, list[tuple[int, TrainJob]]]) -> list[Trained]:
            jobs = [job for _, job in share[1]]
            return train_fused(jobs, penalties) if share[0] else train_stack(jobs, rule_for(jobs, penalties))

        for (_, part), ends in zip(parts, self.map(work, parts), strict=True):
            for (number, _), end in zip(part, ends, strict=True):
                trained[number] = end
        rows = enumerate(zip(asked, at, shifts, strict=True))
        return [attempt(update, request, c, a, shift, trained[n]) for n, ((c, request), a, shift) in rows]

    def _job(self, client: Client, request: TrainRequest, at: Parameters, shift: Any, orders: Orders) -> TrainJob:
        data, work, holding = client.data, request.work, self.record_pool.of(client)
        network = self.networks.of(client.model, data.x.shape[1])
        if network is None or not isinstance(work, LocalWork):
            raise InputError("request", "must be for training that can be batched", type(work).__name__)
        about = (network.key, shape_of(client), data.task, data.cells.notion.score, work.optimizer)
        return TrainJob(
            request=request,
            start=at.values,
            shift=shift,
            data=data,
            pool=self.record_pool.pool(client),
            offset=holding.offset,
            network=network,
            order=orders.of(client.seed, request.round, client.index, holding.count, work),
            key=(*about, *objective_key(request.objective, data)),
        )

    def _trained_privately(self, asked: list[tuple[Client, TrainRequest]]) -> list[Reply | Failed]:
        """DP-SGD: every client draws its minibatches and its noise from its own entropy."""
        return train_together(self, asked)

    # ---- scores and measures ----

    def _forward(self, asked: Sequence[tuple[Client, Any, NDArray[np.int64]]]) -> list[torch.Tensor]:
        """Outputs of (client, parameters, positions)."""
        jobs = []
        for client, parameters, positions in asked:
            network = self.networks.of(client.model, client.data.x.shape[1])
            if network is None:
                raise InputError("model", "must be one that can be batched", type(client.model.module).__name__)
            rows = positions + self.record_pool.of(client).offset
            jobs.append(ForwardJob(network, parameters, self.record_pool.pool(client), rows))
        half = -(-len(jobs) // self.threads)
        parts = [jobs[i : i + half] for i in range(0, len(jobs), max(1, half))]
        return [outputs for part in self.map(outputs_of, parts) for outputs in part]

    def _scores(self, asked: list[tuple[Client, ScoresRequest]]) -> list[Reply | Failed]:
        """A simple random sample of each cell; only the drawn records go through the model."""
        drawn: dict[tuple[Any, ...], Draw] = {}  # runs that differ in λ or method only draw the same records
        draws: list[Draw] = []
        kinds: dict[tuple[Any, str], list[int]] = {}
        for number, (client, request) in enumerate(asked):
            key = (
                client.seed,
                request.round,
                client.index,
                self.record_pool.of(client).key,
                request.quotas.tobytes(),
            )
            if key not in drawn:
                drawn[key] = draw(client, request)
            draws.append(drawn[key])
            data = client.data
            kinds.setdefault((data.task, data.cells.notion.score), []).append(number)
        at = [client.replica.at(request.model).values for client, request in asked]
        outputs = self._forward([(c, p, d.positions) for (c, _), p, d in zip(asked, at, draws, strict=True)])
        replies: dict[int, Reply | Failed] = {}
        for (task, kind), numbers in kinds.items():
            values, labels = torch.cat([outputs[n] for n in numbers]), torch.cat([draws[n].labels for n in numbers])
            scores = task.scores(values, labels, kind).numpy().astype(np.float64)
            for number, cells in zip(numbers, split(scores, [draws[n] for n in numbers]), strict=True):
                replies[number] = Scores(cells)
        return [replies[n] for n in range(len(asked))]

    def _embeddings(self, asked: list[tuple[Client, Any]]) -> list[Reply | Failed]:
        """Sums of features: the models' outputs together, then every client's own message."""
        summed, replies = FeaturesChannel().summed, list[Reply | Failed]()
        for (client, request), scores in zip(asked, self._all_scores(asked), strict=True):
            replies.append(attempt(summed, request, client, scores, client.entropy(EMBEDDINGS, request.round)))
        return replies

    def _all_scores(self, asked: Sequence[tuple[Client, Any]]) -> list[FloatArray]:
        """The scores of all records of each client under the asked model."""
        everything = [np.arange(len(c.data.y)) for c, _ in asked]
        at = [c.replica.at(r.model).values for c, r in asked]
        found: list[FloatArray] = []
        outputs = self._forward([(c, p, e) for (c, _), p, e in zip(asked, at, everything, strict=True)])
        for (client, _), values in zip(asked, outputs, strict=True):
            data = client.data
            found.append(data.task.scores(values, data.y, data.cells.notion.score).numpy().astype(np.float64))
        return found

    def _measured(self, asked: list[tuple[Client, MeasureRequest]]) -> list[Reply | Failed]:
        forward = []
        for client, request in asked:
            at = client.replica.at(request.model)
            values = at.snapshot if request.at_snapshot and at.snapshot is not None else at.values
            forward.append((client, values, np.arange(len(client.data.y))))
        answers = zip(asked, self._forward(forward), strict=True)
        return [Measures(measured(r.quantities, client.data, outputs)) for (client, r), outputs in answers]


PARTS_PER_THREAD = 4  # so that no thread waits long for another


def _shares(members: list[tuple[int, TrainJob]], threads: int) -> list[list[tuple[int, TrainJob]]]:
    """Jobs for the compiled training: as many shares of alike cost as keep all threads busy; equal orders together."""
    members.sort(key=lambda member: (-member[1].order.positions.size, id(member[1].order)))
    total = sum(member[1].order.positions.size for member in members)
    most = max(1, total // (PARTS_PER_THREAD * threads))
    shares: list[list[tuple[int, TrainJob]]] = [[]]
    cost = 0
    for member in members:
        if cost >= most:
            shares.append([])
            cost = 0
        shares[-1].append(member)
        cost += member[1].order.positions.size
    return shares


def _parts(members: list[tuple[int, TrainJob]], threads: int) -> list[list[tuple[int, TrainJob]]]:
    """Jobs that go at once: those with the most steps first, alike in the number of records."""
    members.sort(key=lambda member: (-member[1].order.steps, -member[1].rows))
    first = members[0][1]
    objective = first.request.objective
    drifting = isinstance(objective, Tracked) and objective.drift != "none"

    def rows(member: tuple[int, TrainJob]) -> int:
        return len(member[1].data.y) if drifting else member[1].rows

    room = free_numbers() // (4 * first.order.steps)  # the schedule of a part is held at once
    most = rows_at_once(first.network.width, sum(map(rows, members)), threads)
    return list(cut(members, rows, min(most, room)))


def _alone() -> None:
    """In a worker: no threads within an operation, the others have their own work."""
    torch.set_num_threads(1)


# ---- DP-SGD of many clients by the compiled training, which computes each record by itself. The random draws are the
# same, in the same order, as one client alone would make. What the compiled training cannot do (other modules, tables
# that do not cover all scores) is left to each client, which does it with Opacus.


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
    choices, noises = max(1, _CHOICES_AT_ONCE // max(1, records)), max(1, NORMALS_AT_ONCE // size)
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
Prepared = tuple[int, Client, TrainRequest, PrivateWork, Parameters, Any, Entropy]


def train_together(engine: Engine, asked: Sequence[tuple[Client, TrainRequest]]) -> list[Reply | Failed]:
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
    parts = [part for members in groups.values() for part in _private_parts(engine, members)]
    ends = engine.map(lambda part: _trained_privately(engine, part, penalties, draws), parts)
    for part, trained in zip(parts, ends, strict=True):
        for (number, client, request, _, at, shift, entropy), end in zip(part, trained, strict=True):
            results[number] = attempt(update, request, client, at, shift, end, entropy)
    return [r for r in results if r is not None]


def _private_parts(engine: Engine, members: list[Prepared]) -> list[list[Prepared]]:
    """Jobs that go at once, alike in the expected size of a minibatch."""

    def rows(member: Prepared) -> int:
        return int(member[3].sampling_rate * engine.record_pool.of(member[1]).count) + 1

    network = engine.networks.of(members[0][1].model, members[0][1].data.x.shape[1])
    width = 1 if network is None else network.width
    most = rows_at_once(2 * width, sum(map(rows, members)), engine.threads)
    return list(cut(sorted(members, key=lambda m: -rows(m)), rows, most))


def _trained_privately(engine: Engine, part: Sequence[Prepared], penalties: Penalties, draws: Draws) -> list[Trained]:
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
