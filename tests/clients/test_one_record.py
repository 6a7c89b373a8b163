"""What a client computes of a record depends on that record and the model alone, to the last bit.

The weights are those of a server that lies: features come twice, and weights of 1e8 cancel, so that every bit that the
rounding of a sum leaves is the whole score.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from privfair.channels.base import respond
from privfair.channels.updates import UpdatesChannel
from privfair.clients.client import Client, Embedder
from privfair.clients.training import Trained
from privfair.datasets.records import ClientData, Records, Schema, SensitiveAttribute
from privfair.engines.batched.engine import Engine
from privfair.fairness.notions import Cells, notion_by_name
from privfair.fairness.tracking import EmbeddingPlan, SharedScores, equal_weights
from privfair.federated.messages import (
    EmbeddingsRequest,
    EvaluateRequest,
    Evaluation,
    Objective,
    Parameters,
    PrivateWork,
    ScoreRelease,
    Scores,
    ScoresRequest,
    Task,
    Tracked,
    TrainRequest,
    Update,
)
from privfair.federated.model_state import FedAvg, Replica
from privfair.kernels import GaussianKernel, MaternKernel, RationalQuadraticKernel
from privfair.kernels.witness import Embedding
from privfair.mechanisms.count_release import CountNoise
from privfair.mechanisms.score_release import ScoreNoise
from privfair.mechanisms.vector_release import VectorNoise
from privfair.models import FlatModel, build_module
from privfair.secure_aggregation import aggregators

HALF = 8
SCHEMA = Schema(
    tuple(f"x{i}" for i in range(2 * HALF)), "binary", "y", (0.0, 1.0), (SensitiveAttribute("s", ("0", "1")),)
)
HIDDEN = {"logistic": (), "mlp": (16,), "tests.backends.modules:tanh": ()}


class Silent:
    """Entropy that takes every record and draws no noise: what is left is what the noise would have to hide."""

    claim = False

    def poisson_mask(self, n: int, rate: float) -> NDArray[np.bool_]:
        return np.ones(n, dtype=bool)

    def normal(self, size: int) -> NDArray[np.float64]:
        return np.zeros(size)

    def discrete_gaussian(self, scale: float, size: int) -> NDArray[np.int64]:
        return np.zeros(size, dtype=np.int64)

    discrete_laplace = discrete_gaussian

    def choice(self, n: int, size: int) -> NDArray[np.int64]:
        return np.arange(size)

    def permutation(self, n: int) -> NDArray[np.int64]:
        return np.arange(n)


class Shown:
    """Instead of the aggregator: the sum of features as it goes out."""

    keys = SimpleNamespace(modulus=2**40)  # whole numbers

    def contribute(self, values: NDArray[np.float64], weight: float, **about: int) -> bytes:
        self.values = values.copy()
        return b""


class Holder(Client):
    """A client that shows its sum of features, and where its training ended."""

    shown: Shown
    trained: Trained


@pytest.fixture(autouse=True)
def _training_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    real = UpdatesChannel.message

    def message(self: UpdatesChannel, request: TrainRequest, client: Holder, *about: Any) -> Update:
        client.trained = about[2]
        return real(self, request, client, *about)

    monkeypatch.setattr(UpdatesChannel, "message", message)


def records(count: int, seed: int, positions: Sequence[int] | None = None) -> Records:
    """The first `count` of an endless table, or some of them; every feature comes twice."""
    chosen = np.arange(count) if positions is None else np.asarray(positions, dtype=np.int64)
    rows = [np.random.default_rng([seed, int(i)]) for i in chosen]
    half = np.array([r.normal(size=HALF) for r in rows], dtype=np.float32).reshape(-1, HALF)
    labels = np.array([r.integers(2) for r in rows], dtype=np.float32)
    groups = np.array([r.integers(2) for r in rows], dtype=np.int64).reshape(-1, 1)
    return Records(np.concatenate([half, half], axis=1), labels, groups, np.zeros((len(rows), 0), dtype=bool))


def holder(name: str, train: Records, dtype: torch.dtype = torch.float32, notion: str = "statistical_parity") -> Holder:
    model = FlatModel(build_module(name, 2 * HALF, HIDDEN[name], 0, dtype))
    cells = Cells.of(notion_by_name(notion, SCHEMA), SCHEMA)
    optimizer = FedAvg()
    replica = Replica(model.parameters(), optimizer, aggregators("plain", None, fixed_point=None)[0])
    shown: Any = Shown()
    embedder = Embedder(EmbeddingPlan("energy", 0.0, 1.0, None), shown)
    entropy: Any = lambda channel, number: Silent()  # noqa: E731
    data = ClientData("north", train, train)
    client = Holder(0, data, SCHEMA, cells, model, replica, seed=0, entropy=entropy, embedder=embedder)
    client.shown = shown
    return client


def lying(name: str, seed: int, dtype: Any = np.float32) -> NDArray[Any]:
    """Weights that cancel on features that come twice; the rest of the model makes the most of what is left."""
    rng = np.random.default_rng(seed)
    model = FlatModel(build_module(name, 2 * HALF, HIDDEN[name], seed, torch.float32))
    scale = 1e8 if dtype is np.float32 else 1e17
    theta = model.parameters().astype(dtype)
    units = {"logistic": 1, "mlp": 16}.get(name, 4)
    first = (scale * rng.normal(size=(units, HALF))).astype(dtype)
    theta[: units * 2 * HALF] = np.concatenate([first, -first], axis=1).reshape(-1)
    if name != "tests.backends.modules:tanh":
        theta[units * 2 * HALF :] = 0.3 * rng.normal(size=theta.size - units * 2 * HALF)
    return theta


def asked(theta: NDArray[Any], objective: Objective | None = None, clip: float = 1.0) -> TrainRequest:
    work = PrivateWork(1, 1.0, 0.0, clip, 1.0, 1.0)
    return TrainRequest(0, Parameters(theta), objective or Task(), work, 1.0)


def penalised(kernel: str) -> Tracked:
    scores = (np.array([0.1, 0.4]), np.array([0.6, 0.9]))
    return Tracked(SharedScores(kernel, 5.0, scores, equal_weights(scores), np.array([20.0, 30.0]), 50.0, (0.0, 1.0)))


def alone(client: Holder, request: Any) -> Any:
    return respond(client, request)


def stacked(client: Holder, request: Any) -> Any:
    return Engine([client]).replies([(client, request)])[0]


ENGINES = {"alone": alone, "stacked": stacked}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["logistic", "mlp"])
def test_one_record_moves_the_sum_of_features_by_no_more_than_is_claimed(engine: str, name: str) -> None:
    """By five times as much with one matrix product over all records."""
    worst = 0.0
    for seed in range(40):
        theta = lying(name, seed)
        for count in (3, 11, 31):
            sums = []
            for n in (count, count + 1):
                client = holder(name, records(n, seed))
                noise = VectorNoise(1.0, client.embedder.plan.unit.count)  # type: ignore[union-attr]
                ENGINES[engine](client, EmbeddingsRequest(0, Parameters(theta), np.ones(2, np.int64), noise))
                sums.append(client.shown.values)
            moved = np.linalg.norm(sums[1] - sums[0])
            worst = max(worst, moved / noise.sensitivity())
    assert 0.3 < worst <= 1


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["logistic", "mlp"])
@pytest.mark.parametrize("penalty", [False, True], ids=["task", "penalty"])
def test_one_record_moves_the_clipped_sum_by_no_more_than_the_bound(engine: str, name: str, penalty: bool) -> None:
    """By three times as much with one matrix product. Seen in the parameters that are not of size 1e8."""
    worst = 0.0
    for seed in range(40):
        theta = lying(name, seed)
        small = np.abs(theta) < 2
        for count in (3, 11, 31):
            ends = []
            for n in (count, count + 1):
                client = holder(name, records(n, seed))
                ENGINES[engine](client, asked(theta, penalised("energy") if penalty else None))
                ends.append(client.trained.parameters[small].astype(np.float64))
            # the ends are rounded to single precision: half a last bit of numbers below count + 3, in each of both
            rounding = np.sqrt(small.sum()) * 2 * np.spacing(np.float32(count + 3)) / 2
            worst = max(worst, (np.linalg.norm(ends[1] - ends[0]) - rounding))
    assert 0.3 < worst <= 1


ODD = st.sampled_from([0.0, -0.0, 1e8, -1e8, 1e-40, -1e-45, 3e38, float("inf"), float("nan")])


@st.composite
def neighbours(draw: st.DrawFn) -> tuple[str, NDArray[np.float32], int, int, list[int]]:
    """A model, its weights, a table of records, one of them, and the records beside which it stands."""
    name = draw(st.sampled_from(sorted(HIDDEN)))
    theta = lying(name, draw(st.integers(0, 2**20)))
    for place in draw(st.lists(st.integers(0, theta.size - 1), max_size=3)):
        theta[place] = draw(ODD)
    others = draw(st.lists(st.integers(1, 200), max_size=9 if "tests" in name else 70, unique=True))
    return name, theta, draw(st.integers(0, 2**20)), draw(st.integers(0, len(others))), others


def together(case: tuple[str, NDArray[np.float32], int, int, list[int]]) -> tuple[Holder, Holder, int, Any]:
    """The record by itself and among others, where it stands among them, and the model."""
    name, theta, seed, place, others = case
    among = [*others[:place], 0, *others[place:]]
    return holder(name, records(1, seed)), holder(name, records(0, seed, among)), place, Parameters(theta)


def same(one: Any, other: Any) -> bool:
    return np.array_equal(np.asarray(one), np.asarray(other), equal_nan=True)


@settings(max_examples=150, deadline=None)
@given(neighbours())
def test_scores_features_and_decisions_are_those_of_the_record_alone(case: Any) -> None:
    from privfair.clients.client import all_scores

    single, many, place, at = together(case)
    found = []
    for client, row in ((single, 0), (many, place)):
        client.model.load(at.values)
        for data in (client.data, client.test_data):
            scores = all_scores(client.model, data.each_record_alone)
            psi = [
                EmbeddingPlan(k, 0.0, 1.0, None).unit.values(scores, alone=True)[row]
                for k in ("energy", "gaussian:0.3")
            ]
            decided = data.each_record_alone.task.predictions(data.each_record_alone.outputs(client.model)) >= 0.5
            found.append([scores[row], *psi, decided[row]])
    for other in found[1:]:
        assert all(same(a, b) for a, b in zip(found[0], other, strict=True))


@settings(max_examples=60, deadline=None)
@given(neighbours())
def test_clipped_gradients_are_those_of_the_record_alone(case: Any) -> None:
    """What is clipped and summed in training, of the record by itself and of its row among others."""
    from privfair.clients import opacus_engine

    summed = opacus_engine.clipped_sum
    single, many, place, at = together(case)
    for kernel in ("energy", "gaussian:0.3"):
        rows = []

        def noted(gradients: Any, bound: float, grid: float, rows: list[Any] = rows) -> Any:
            rows.append(np.array(gradients))
            return summed(gradients, bound, grid)

        with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
            patch.setattr(opacus_engine, "clipped_sum", noted)
            for client in (single, many):
                respond(client, asked(at.values, penalised(kernel)))
        assert same(rows[0][0], rows[1][place])
        assert same(summed(rows[0], 0.5, 2.0**-29), summed(rows[1][[place]], 0.5, 2.0**-29))


@settings(max_examples=60, deadline=None)
@given(neighbours(), st.sampled_from([None, "energy", "gaussian:0.3", "matern32:0.4"]))
def test_the_stacked_engine_sums_what_each_record_adds_alone(case: Any, kernel: str | None) -> None:
    """In double precision, where nothing of the sum is lost: all records together, and each for itself."""
    name, _, seed, place, others = case
    theta = lying(name, seed, np.float64)
    among = [*others[:place], 0, *others[place:]][:12]
    small = np.abs(theta) < 2

    def total(rows: Records) -> NDArray[np.float64]:
        client = holder(name, rows, torch.float64)
        stacked(client, asked(theta, None if kernel is None else penalised(kernel)))
        found: NDArray[np.float64] = theta[small] - client.trained.parameters[small]
        return found

    each = sum((total(records(0, seed, [i])) for i in among), np.zeros(int(small.sum())))
    # θ − Σ is rounded once for each of the calls, at numbers of at most 2 + 12
    np.testing.assert_allclose(total(records(0, seed, among)), each, rtol=0, atol=13 * np.spacing(14.0))


def test_released_scores_and_decisions_are_those_of_the_record_alone() -> None:
    """Through the whole answer, of both engines: a message of all scores, and the table of decisions."""
    noise = ScoreNoise("gaussian", 0.5)
    for name in HIDDEN:
        theta = lying(name, 3)
        for answer in ENGINES.values():
            apart, tables = [], []
            for i in range(11):
                client = holder(name, records(0, 5, [i]))
                quotas = client.cell_counts
                reply: Scores = answer(client, ScoresRequest(0, Parameters(theta), quotas, ScoreRelease(noise, None)))
                apart += [float(s) for cell in reply.cells for s in cell]
                reported: Evaluation = answer(client, EvaluateRequest(Parameters(theta), CountNoise("laplace", 1.0)))
                tables.append(reported.confusion[0])
            client = holder(name, records(11, 5))
            release = ScoreRelease(noise, None)
            reply = answer(client, ScoresRequest(0, Parameters(theta), client.cell_counts, release))
            assert sorted(s for cell in reply.cells for s in cell) == sorted(apart)
            reported = answer(client, EvaluateRequest(Parameters(theta), CountNoise("laplace", 1.0)))
            assert np.array_equal(reported.confusion[0], sum(tables))


@pytest.mark.parametrize(
    "kernel", [GaussianKernel(0.3), MaternKernel(0.4, 1.5), RationalQuadraticKernel(0.5, 1.0)], ids=str
)
@pytest.mark.parametrize("domain", [(0.0, 1.0), (0.3, 0.5)], ids=["tables", "direct sums"])
def test_slopes_of_a_penalty_are_those_of_the_score_alone(kernel: Any, domain: tuple[float, float]) -> None:
    rng = np.random.default_rng(0)
    samples = rng.random(40)
    curve = Embedding(kernel, samples, rng.normal(size=40), domain=domain, tie=1e-6)
    scores = rng.random(70)
    for order in (0, 1):
        each = np.array([curve.evaluate(scores[i : i + 1].copy(), order)[0] for i in range(70)])
        for count in range(1, 71):
            assert np.array_equal(curve.evaluate(scores[:count], order), each[:count])
            assert np.array_equal(curve.evaluate(scores[70 - count :].copy(), order), each[70 - count :])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_elementwise_functions_do_not_look_at_their_neighbours(dtype: Any) -> None:
    """Of torch and numpy, where the private path uses theirs; lengths 1 … 70, every position."""
    rng = np.random.default_rng(1)
    values = (rng.normal(size=70) * 10.0 ** rng.integers(-8, 4, size=70)).astype(dtype)
    other = rng.normal(size=70).astype(dtype)
    functions: dict[str, Callable[[Any, Any], Any]] = {
        "exp": lambda a, b: np.exp(-np.abs(a)),
        "product": lambda a, b: (torch.from_numpy(a) * torch.from_numpy(b)).numpy(),
        "sum": lambda a, b: (torch.from_numpy(a) + torch.from_numpy(b)).numpy(),
        "difference": lambda a, b: (1 - torch.from_numpy(a)).numpy(),
        "square": lambda a, b: torch.from_numpy(a).square().numpy(),
        "relu": lambda a, b: torch.from_numpy(a).relu().numpy(),
        "clamp": lambda a, b: (torch.from_numpy(a) + 0.5).clamp(0.0, 1.0).numpy(),
        "quotient": lambda a, b: (torch.from_numpy(a) / torch.from_numpy(b)).numpy(),
        "double": lambda a, b: torch.from_numpy(a).double().numpy(),
    }
    for name, function in functions.items():
        each = np.array([function(values[i : i + 1].copy(), other[i : i + 1].copy())[0] for i in range(70)])
        for count in range(1, 71):
            for start in (0, 70 - count):
                part = slice(start, start + count)
                assert np.array_equal(function(values[part].copy(), other[part].copy()), each[part]), name
