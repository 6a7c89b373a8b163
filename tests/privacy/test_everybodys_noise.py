"""Every client, channel and cell has noise of its own, of the planned scale; no gradient of a record goes unclipped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privfair.audit.attack import all_clients, backend_of
from privfair.clients.client import Client, confusion_tables
from privfair.clients.training import train_locally
from privfair.config import Config
from privfair.datasets.records import ClientData
from privfair.fairness.tracking import SharedFeatures, SharedScores
from privfair.federated.messages import (
    Counts,
    CountsRequest,
    Embeddings,
    EmbeddingsRequest,
    EvaluateRequest,
    Evaluation,
    LocalWork,
    Parameters,
    PrivateWork,
    Request,
    ScoreRelease,
    Scores,
    ScoresRequest,
    Task,
    Tracked,
    TrainRequest,
    Update,
)
from privfair.mechanisms.count_release import CountNoise
from privfair.mechanisms.entropy import stream
from privfair.mechanisms.score_release import ScoreNoise
from privfair.mechanisms.vector_release import UpdateRelease, VectorNoise
from privfair.runs.assembly import Simulation, build
from tests.end_to_end.federations import toy

CLIENTS = 21
COUNTING = CountNoise("laplace", 40.0)
NOISY = {"count_noise": 1.0, "prediction_noise": 1.0, "noise_multiplier": 1.0, "sampling_rate": 1.0, "local_steps": 1}
WORK = PrivateWork(4, 1.0, 1.5, 0.8, divisor=37.5, learning_rate=0.3)
ENGINES = pytest.mark.parametrize("engine", ["local", "stacked"])


@contextmanager
def everybody(folder: Path, engine: str, clients: int = CLIENTS, **sections: Any) -> Iterator[Simulation]:
    """A private federation in which every client has the same records: what differs between them is noise."""
    run = {"engine": engine, "reproducible_noise": True, "ledger": f"sqlite:///{folder}/l.sqlite", "seed": 5}
    embeds = sections.get("fairness", {}).get("tracker") == "embedding"  # sums of features sample no record
    privacy = NOISY if embeds else {**NOISY, "prediction_rate": 1.0}
    config = Config.build({"privacy": privacy, "aggregation": {"scheme": "plain"}, "run": run, **sections})
    federation = toy(clients=clients, records=32, attributes=2)
    first = federation.clients[0]
    same = tuple(ClientData(client.name, first.train, first.test) for client in federation.clients)
    simulation = build(config, replace(federation, clients=same))
    try:
        yield simulation
    finally:
        simulation.close()


def replies(simulation: Simulation, request: Request) -> list[Any]:
    """What everybody answers, by the configured engine."""
    members = all_clients(simulation)
    return list(backend_of(simulation, members).exchange(range(len(members)), lambda _: request))


def zeros(simulation: Simulation) -> Parameters:
    """A model of which every score is ½."""
    return Parameters(np.zeros_like(simulation.model.parameters()))


def changes(simulation: Simulation, request: TrainRequest) -> np.ndarray:
    """(clients, parameters): every update, opened."""
    found = []
    for reply in replies(simulation, request):
        assert isinstance(reply, Update)
        found.append(simulation.replica.aggregator.open(simulation.server.adder.add([reply.contribution])))
    return np.array(found)


def noise_of(simulation: Simulation, channel: str) -> tuple[np.ndarray, float]:
    """(clients, cells, draws): what was added to the truth, over its planned standard deviation; its kurtosis."""
    cells, client, model = len(simulation.cells), all_clients(simulation)[0], zeros(simulation)
    laplace, normal = 6.0, 3.0
    if channel == "counts":
        reported = [r for r in replies(simulation, CountsRequest(COUNTING)) if isinstance(r, Counts)]
        off = np.array([r.cells - client.cell_counts for r in reported])
        return off[:, :, None] / (np.sqrt(2) * COUNTING.scale), laplace
    if channel == "evaluation":
        client.model.load(model.values)
        groups = tuple(len(a.values) for a in simulation.federation.schema.sensitive)
        true = confusion_tables(client.test_data, client.model, groups)
        reported = [r for r in replies(simulation, EvaluateRequest(model, COUNTING)) if isinstance(r, Evaluation)]
        off = np.array([[table - exact for table, exact in zip(r.confusion, true, strict=True)] for r in reported])
        return off.reshape(len(reported), -1, 4) / (np.sqrt(2) * COUNTING.scale), laplace
    if channel == "predictions":
        noise = ScoreNoise("gaussian", 0.7)
        release = ScoreRelease(noise, np.ones(cells))
        request = ScoresRequest(0, model, np.full(cells, 12, dtype=np.int64), release)
        reported = [r for r in replies(simulation, request) if isinstance(r, Scores)]
        return np.array([np.stack(r.cells) - 0.5 for r in reported]) / noise.scale, normal
    assert channel == "embeddings"
    assert client.embedder is not None
    unit = client.embedder.plan.unit
    noise = VectorNoise(0.9, unit.count, unit.spread, client.embedder.plan.steps)
    request = EmbeddingsRequest(0, model, np.ones(cells, dtype=np.int64), noise)
    sums = []
    for asked in (request, replace(request, release=None)):
        reported = [r for r in replies(simulation, asked) if isinstance(r, Embeddings)]
        sums.append(np.array([client.embedder.total(r.contribution, asked.round) for r in reported]))
    return (sums[0] - sums[1]).reshape(len(sums[0]), cells, -1) / noise.grid_scale, normal


def require_noise(noise: np.ndarray, kurtosis: float) -> None:
    """Everybody's draws are their own, and have the planned scale; wrong for honest noise with probability 1e-8."""
    clients, cells, draws = noise.shape
    assert (noise != 0).any(axis=(1, 2)).all(), "a client without noise"
    by_client = noise.reshape(clients, -1)
    assert len(np.unique(by_client, axis=0)) == clients, "two clients with the same noise"
    if draws > 1:
        assert len(np.unique(noise.reshape(-1, draws), axis=0)) == clients * cells, "two cells with the same noise"
    for part in (by_client, noise.reshape(1, -1)):
        # the variance of n draws has a standard error of √((kurtosis − 1)/n); a few draws have heavier tails than that
        error = 6 * np.sqrt((kurtosis - 1) / part.shape[1])
        found = np.mean(part**2, axis=1)
        assert (found < 1 + 2 * error).all()
        assert (found > 1 - error).all()


@ENGINES
@pytest.mark.parametrize("channel", ["counts", "predictions", "evaluation", "embeddings"])
def test_every_client_and_every_cell_has_noise_of_its_own(tmp_path: Path, engine: str, channel: str) -> None:
    fairness = {"tracker": "embedding"} if channel == "embeddings" else {}
    with everybody(tmp_path, engine, fairness=fairness) as simulation:
        require_noise(*noise_of(simulation, channel))


@ENGINES
@pytest.mark.parametrize("objective", ["task", "penalty"])
def test_every_update_has_noise_of_its_own_whatever_the_size_of_a_batch(
    tmp_path: Path, engine: str, objective: str
) -> None:
    """Noise z·C in every step, divided by the planned batch as the gradients are: the root of no batch is in it."""
    with everybody(tmp_path, engine) as simulation:
        goal = Task() if objective == "task" else tracked(simulation, 1.0)
        request = TrainRequest(0, zeros(simulation), goal, WORK, weight=1.0)
        for work in (WORK, replace(WORK, divisor=1.0, learning_rate=0.3 / 37.5)):
            request = replace(request, work=replace(work, learning_rate=1e-6 * work.learning_rate))
            exact = changes(simulation, replace(request, work=replace(request.work, noise_multiplier=0.0)))
            step = request.work.learning_rate * work.noise_multiplier * work.max_grad_norm / work.divisor
            scale = step * np.sqrt(work.steps)
            require_noise(((changes(simulation, request) - exact) / scale)[:, None, :], 3.0)


def tracked(simulation: Simulation, strength: float) -> Tracked:
    """A penalty that pulls the groups' scores apart."""
    cells, client = len(simulation.cells), all_clients(simulation)[0]
    ones, records = np.ones(cells), float(cells)
    if client.embedder is not None:
        plan = client.embedder.plan
        ends = plan.unit.values(np.array([plan.low, plan.high]))
        return Tracked(SharedFeatures(plan, strength, ends[np.arange(cells) % 2], ones, ones, records))
    scores = tuple(np.array([float(c % 2)]) for c in range(cells))
    return Tracked(SharedScores("energy", strength, scores, (np.ones(1),) * cells, ones, records, (0.0, 1.0)))


@ENGINES
@pytest.mark.parametrize("tracker", ["scores", "embedding"])
@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_the_gradient_of_the_penalty_is_clipped_with_that_of_the_task(
    tmp_path: Path, engine: str, tracker: str, model: str
) -> None:
    """λ = 1e6: with n records a step moves the parameters by at most η·n·C over the planned batch, without noise."""
    fairness = {"tracker": tracker} if tracker == "embedding" else {}
    with everybody(tmp_path, engine, clients=2, fairness=fairness, model={"name": model}) as simulation:
        work = replace(WORK, steps=1, noise_multiplier=0.0)
        start = Parameters(simulation.model.parameters())
        most = work.learning_rate * work.max_grad_norm / work.divisor * len(all_clients(simulation)[0].data.y)
        for strength in (0.0, 1e6):
            request = TrainRequest(0, start, tracked(simulation, strength), work, weight=1.0)
            lengths = np.linalg.norm(changes(simulation, request), axis=1)
            assert (lengths <= most * (1 + 1e-5)).all()
        assert (lengths > 0.05 * most).all()  # the penalty is there


@ENGINES
def test_every_whole_update_has_noise_of_its_own(tmp_path: Path, engine: str) -> None:
    """Where whole clients are protected: the same training everywhere, and noise on the grid."""
    privacy = {"counts": "public", "updates": "client_level", "noise_multiplier": 2.0, "prediction_noise": 9.0}
    with everybody(tmp_path, engine, privacy=privacy) as simulation:
        size = simulation.model.parameters().size
        noise = VectorNoise(2.0, size, 2.0, 4096)
        release = UpdateRelease(1.0, 1.0, noise)
        request = TrainRequest(0, zeros(simulation), Task(), LocalWork(1, None, 0.1), weight=1.0, release=release)
        found = changes(simulation, request)
        exact = release.whole(trained(all_clients(simulation)[0], request))
        require_noise(((found - exact) / noise.grid_scale)[:, None, :], 3.0)


def trained(client: Client, request: TrainRequest) -> np.ndarray:
    """What a client's training changes, without noise."""
    start = client.replica.at(request.model).values
    rng = stream(client.seed, "minibatches", request.round, client.index)
    return train_locally(request, start, client.data, client.model, rng).parameters - start
