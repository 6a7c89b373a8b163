"""Private training requests as stacked jobs.

Compiled training computes each record by itself. What it cannot do (other modules, tables that do not cover all scores)
is left to each client, which does it with Opacus.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from privfair.backends.stacked.assembling import Penalties, objective_key
from privfair.backends.stacked.chunks import cut, rows_at_once
from privfair.backends.stacked.fused import PrivateJob, can_be_fused, train_fused_privately
from privfair.backends.stacked.holdings import data_of, entropy_for, model_of, replica_of, shape_of, shift_of
from privfair.backends.stacked.lockstep import Failed, attempt
from privfair.backends.stacked.private_draws import Draws
from privfair.backends.stacked.training import TrainJob
from privfair.backends.stacked.updates import update
from privfair.clients.client import Client
from privfair.clients.dp_sgd import _checked
from privfair.clients.objectives import followed
from privfair.clients.steps import Trained
from privfair.messages import Parameters, PrivateWork, Reply, Tracked, TrainRequest
from privfair.record_arithmetic import VECTOR_LIBRARY, require_summable

if TYPE_CHECKING:
    from privfair.backends.stacked.engine import Engine

Asked = tuple[Client, TrainRequest]
Prepared = tuple[int, Client, TrainRequest, PrivateWork, Parameters, Any]


def train_together(engine: Engine, asked: Sequence[Asked]) -> list[Reply | Failed]:
    """The update of each, trained together."""
    penalties, draws = Penalties(), Draws()
    results: list[Reply | Failed | None] = [None] * len(asked)
    groups: dict[tuple[Any, ...], list[Prepared]] = {}
    for number, (client, request) in enumerate(asked):
        try:
            work = _checked(request)
            require_summable(len(data_of(client).y))
        except Exception as error:  # noqa: BLE001 - it is raised again in its own run
            results[number] = Failed(error)
            continue
        at = replica_of(client).at(request.model)
        network = engine.networks.of(model_of(client), data_of(client).x.shape[1])
        data = data_of(client)
        about = (network and network.key, shape_of(client), data.task, data.cells.notion.score, work.optimizer)
        if isinstance(request.objective, Tracked):
            penalties.of_shared(followed(request.objective), data.cells)
        fused = network is not None and can_be_fused(network, request.objective, data, penalties)
        if not fused or VECTOR_LIBRARY:
            results[number] = attempt(client.respond, request)
            continue
        key = (*about, work.steps, *objective_key(request.objective, data))
        groups.setdefault(key, []).append((number, client, request, work, at, shift_of(client, request, at)))
    parts = [part for members in groups.values() for part in _parts(engine, members)]
    ends = engine.map(lambda part: _trained(engine, part, penalties, draws), parts)
    for part, trained in zip(parts, ends, strict=True):
        for (number, client, request, _, at, shift), end in zip(part, trained, strict=True):
            results[number] = attempt(update, client, request, at, shift, end)
    return [r for r in results if r is not None]


def _parts(engine: Engine, members: list[Prepared]) -> list[list[Prepared]]:
    """Jobs that go at once, alike in the expected size of a minibatch."""

    def rows(member: Prepared) -> int:
        return int(member[3].sampling_rate * engine.holdings.of(member[1]).count) + 1

    network = engine.networks.of(model_of(members[0][1]), data_of(members[0][1]).x.shape[1])
    width = 1 if network is None else network.width
    most = rows_at_once(2 * width, sum(map(rows, members)), engine.threads)
    return list(cut(sorted(members, key=lambda m: -rows(m)), rows, most))


def _trained(engine: Engine, part: Sequence[Prepared], penalties: Penalties, draws: Draws) -> list[Trained]:
    jobs = []
    for _, client, request, work, at, shift in part:
        data, holding = data_of(client), engine.holdings.of(client)
        network = engine.networks.of(model_of(client), data.x.shape[1])
        if network is None:
            raise TypeError("a model that cannot be stacked")
        entropy = entropy_for(client, "updates", request.round)
        order, noise = draws.of(holding.count, at.values.size, work, entropy)
        job = TrainJob(
            request=request,
            start=at.values,
            shift=shift,
            data=data,
            pool=engine.holdings.pool(client),
            offset=min(holding.offset, max(0, len(engine.holdings.pool(client).rows) - 1)),
            network=network,
            order=order,
            key=(),
        )
        jobs.append(PrivateJob(job, noise, work))
    return train_fused_privately(jobs, penalties)
