"""A local step with DP-SGD by Opacus, against the same step without privacy.

The paper's perceptron (16 hidden units) at 100 records a step, on 1,000 made-up records of COMPAS' width; one thread,
as our engine has. A call trains for three epochs, what it costs to set up included, with the noise of a real run. Calls
of both kinds take turns and the quickest of each counts, so that a busy moment does not fall on one kind alone.

Private steps and scores compute each record by itself, to the last bit (`privfair.per_record`). What that costs
is measured against the same code with matrix products over all records, which is not private for weights that a server
may choose: a private round of one client is its scores and its local training.

Where clients share the noise of a sum, gradients are summed in whole numbers: one step a round, on the stacked engine
against its DP-SGD, from the request to the reply, with seeded noise. Noise from the operating system is printed beside
it: exact draws of whole numbers take OpenDP microseconds each.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.measure import Result, seconds
from privfair.clients import opacus_engine
from privfair.clients.client import Client, TrainingData, all_scores
from privfair.clients.training import train_locally, train_privately
from privfair.datasets.records import ClientData, Records, Schema, SensitiveAttribute
from privfair.engines.batched.engine import Engine
from privfair.fairness.notions import Cells, notion_by_name
from privfair.fairness.tracking import SharedScores, equal_weights
from privfair.federated.messages import LocalWork, Objective, Parameters, PrivateWork, Task, Tracked, TrainRequest
from privfair.federated.model_state import FedAvg, Replica
from privfair.mechanisms.entropy import SeededEntropy, SystemEntropy
from privfair.mechanisms.vector_release import GradientRelease, VectorNoise
from privfair.models import FlatModel, TaskKind, build_module
from privfair.secure_aggregation import aggregators

RECORDS, FEATURES, BATCH, EPOCHS = 1000, 8, 100, 3
REPEATS = 100
NAMES = tuple(f"x{i}" for i in range(FEATURES))
SCHEMA = Schema(NAMES, "binary", "y", (0.0, 1.0), (SensitiveAttribute("group", ("0", "1")),))


def run() -> list[Result]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    data = made_up_records()
    model = FlatModel(build_module("mlp", FEATURES, [16], 0, torch.float32))
    results = []
    for name, objective in (("task loss", Task()), ("task loss and fairness penalty", tracked(data))):
        plain, private = best_times(objective, data, model)
        results.append(Result(f"DP-SGD step by Opacus, {name}: times the plain step", private / plain, 2, "×", False))
        print(f"  {name}: {plain * 1e6:.0f} µs a plain step, {private * 1e6:.0f} µs a private one")
    for name, objective in (("task loss", Task()), ("task loss and fairness penalty", tracked(data))):
        apart, together = round_times(objective, data, model)
        label = f"private round, {name}: each record by itself, times matrix products"
        results.append(Result(label, apart / together, 1.3, "×", False))
    for rate in (BATCH / RECORDS, 1.0):
        for name, objective in (("task loss", Task()), ("task loss and fairness penalty", tracked(data))):
            whole, usual = whole_number_times(objective, data, rate)
            label = f"step in whole numbers, {name}, {rate:.0%} of the records: times DP-SGD's, stacked engine"
            results.append(Result(label, whole / usual, 1.3, "×", False))
    noise = VectorNoise(1.0, 1000, steps=2**14, inward=True)
    drawn = seconds(lambda: noise.release(np.zeros(1000, np.int64), SystemEntropy()), repeats=5)
    print(f"  whole-number noise from the operating system: {drawn * 1e3:.1f} µs a parameter")
    torch.set_num_threads(threads)
    return results


def best_times(objective: Objective, data: TrainingData, model: FlatModel) -> tuple[float, float]:
    """Seconds of a plain and of a private step."""
    start = model.parameters()
    steps = EPOCHS * RECORDS // BATCH
    plain_work = LocalWork(EPOCHS, BATCH, 0.05)
    private_work = PrivateWork(steps, BATCH / RECORDS, 1.0, 1.0, float(BATCH), 0.05)
    plain, private = (
        TrainRequest(round=0, model=Parameters(start), objective=objective, work=work, weight=1.0)
        for work in (plain_work, private_work)
    )
    rng = np.random.default_rng(0)
    train_privately(private, start, data, model, SystemEntropy())  # imports Opacus
    times = [
        (
            seconds(lambda: train_locally(plain, start, data, model, rng)),
            seconds(lambda: train_privately(private, start, data, model, SystemEntropy())),
        )
        for _ in range(REPEATS)
    ]
    return min(t for t, _ in times) / steps, min(t for _, t in times) / steps


def round_times(objective: Objective, data: TrainingData, model: FlatModel) -> tuple[float, float]:
    """Seconds of computing of a client's private round: each record by itself, and by products over all records."""
    start = model.parameters()
    work = PrivateWork(EPOCHS * RECORDS // BATCH, BATCH / RECORDS, 1.0, 1.0, float(BATCH), 0.05)
    request = TrainRequest(round=0, model=Parameters(start), objective=objective, work=work, weight=1.0)

    def apart() -> None:
        all_scores(model, data.each_record_alone)
        train_privately(request, start, data, model, SystemEntropy())
        model.load(start)

    def together() -> None:
        with (
            patch.object(TaskKind, "each_record_alone", property(lambda task: task)),
            patch.object(FlatModel, "each_record_alone", nullcontext),
            patch.object(opacus_engine, "clipped_sum", matrix_sum),
        ):
            apart()

    def busy(work: Callable[[], None]) -> float:
        """Of the processor, which does not count what others do: there is one thread, and nothing waits."""
        began = time.process_time()
        work()
        return time.process_time() - began

    times = [(busy(apart), busy(together)) for _ in range(REPEATS)]
    return min(t for t, _ in times), min(t for _, t in times)


def whole_number_times(objective: Objective, data: TrainingData, rate: float) -> tuple[float, float]:
    """Seconds of one client's step on the stacked engine: gradients in whole numbers, and today's DP-SGD."""
    model = FlatModel(build_module("mlp", FEATURES, [16], 0, torch.float32))
    start = model.parameters()
    replica = Replica(start, FedAvg(), aggregators("plain", None, fixed_point=None)[0])

    def entropy(channel: str, number: int) -> SeededEntropy:
        return SeededEntropy(np.random.default_rng(number))

    records = ClientData("made up", data.records, data.records)
    client = Client(0, records, SCHEMA, data.cells, model, replica, seed=0, entropy=entropy)
    engine = Engine([client])
    work = PrivateWork(1, rate, 1.0, 1.0, rate * RECORDS, 0.05)
    release = GradientRelease(1.0, 2**28, VectorNoise(1.0, start.size, steps=2**16, inward=True))
    whole, usual = (
        TrainRequest(round=0, model=Parameters(start), objective=objective, work=work, weight=1.0, gradient=gradient)
        for gradient in (release, None)
    )
    times = [[seconds(lambda r=r: engine.replies([(client, r)])) for r in (whole, usual)] for _ in range(3 * REPEATS)]
    return min(t for t, _ in times), min(t for _, t in times)


def matrix_sum(gradients: NDArray[np.float64], bound: float, grid: float) -> NDArray[np.float64]:
    """Σ of clipped gradients as one product."""
    each = torch.from_numpy(gradients)
    shares = (bound / (torch.linalg.vector_norm(each, dim=1) + 1e-6)).clamp_(max=1.0)
    return np.asarray((shares @ each).numpy())


def made_up_records() -> TrainingData:
    """Two groups, labels that depend on the features."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(RECORDS, FEATURES)).astype(np.float32)
    groups = rng.integers(2, size=(RECORDS, 1))
    records = Records(x, (x.sum(axis=1) > 0).astype(np.float32), groups, np.zeros((RECORDS, 0), dtype=bool))
    cells = Cells.of(notion_by_name("statistical_parity", SCHEMA), SCHEMA)
    return TrainingData(
        records=records,
        x=torch.tensor(records.features),
        y=torch.tensor(records.labels),
        membership=cells.membership(records),
        cells=cells,
        task=TaskKind.of(SCHEMA),
    )


def tracked(data: TrainingData) -> Tracked:
    """The paper's penalty with 100 shared scores a group."""
    rng = np.random.default_rng(1)
    scores = tuple(rng.random(100) for _ in range(len(data.cells)))
    counts = data.membership.sum(axis=0).astype(np.float64)
    return Tracked(SharedScores("energy", 1.0, scores, equal_weights(scores), counts, float(RECORDS), (0.0, 1.0)))
