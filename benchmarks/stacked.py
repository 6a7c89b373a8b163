"""The stacked engine: sweeps against a plain PyTorch loop and our sequential engine; growth; DP-SGD; arithmetic limit.

COMPAS and Communities & Crime, λ × seeds, 10 local epochs, batch 100, 16 hidden units. The sweep is one as `privfair
sweep` makes it, with some of the runs and all of the 100 rounds, from its configurations to its rows. Plain loop and
sequential engine are timed on some of the rounds, which are all alike. Seconds are by the clock, so a machine that
others use at the same time shows less than it can; processor seconds of one process are printed beside them.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from benchmarks import training
from benchmarks.measure import Result, seconds
from privfair.channels.base import respond
from privfair.clients.client import Client
from privfair.config import Config
from privfair.datasets.records import ClientData, Federation, Records, Schema, SensitiveAttribute
from privfair.datasets.registry import load
from privfair.engines.batched import assembling as fused
from privfair.engines.batched.engine import Engine
from privfair.fairness.tracking import SharedScores, equal_weights
from privfair.federated.messages import Parameters, PrivateWork, Tracked, TrainRequest
from privfair.runs.assembly import build
from privfair.runs.batched import build_stacked, run_stacked
from privfair.runs.loop import run as run_rounds
from privfair.sweeps import Grid, run_many
from privfair.util import one_thread

STRENGTHS, SEEDS, ROUNDS, THREADS = 10, 10, 3, 2
WHOLE_ROUNDS = 100


def run() -> list[Result]:
    if not os.environ.get("PRIVFAIR_DATA"):
        print("  skipped: PRIVFAIR_DATA does not point to the COMPAS and Communities files")
        return []
    return [*compas(), *communities(), *growth(), *private()]


def config(name: str, rounds: int, strength: float = 1.0, seed: int = 0, **more: Any) -> Config:
    work = {"rounds": rounds, "local_epochs": training.EPOCHS, "batch_size": training.BATCH, "learning_rate": 0.05}
    fairness = {"lambda": strength, "samples": training.SAMPLES}
    tables = {"data": {"name": name}, "model": {"name": "mlp", "hidden": [16]}, "fairness": fairness}
    return Config.build({**tables, "federation": work, "run": {"seed": seed}, **more})


@dataclass(frozen=True)
class Round:
    """Seconds of one round of one run."""

    plain: float
    sequential: float
    sweep: float  # on the stacked engine, in a process for each core
    stacked: float  # in one process
    used: float  # of processors, in that process
    training: float  # what of `used` is compiled training


def per_round(federation: Federation, name: str, strengths: int, seeds: int) -> Round:
    training.plain_loop(federation, rounds=1)  # imports
    with one_thread():
        plain = seconds(lambda: training.plain_loop(federation), repeats=2) / training.ROUNDS
    alone = [build(config(name, ROUNDS), federation) for _ in range(2)]
    sequential = seconds(lambda: run_rounds(alone.pop()), repeats=2) / ROUNDS
    grid = [config(name, ROUNDS, s, seed) for seed in range(seeds) for s in np.linspace(0, 2, strengths)]
    run_stacked(build_stacked(grid[:2], federation), threads=THREADS)  # compiles
    stacks = [build_stacked(grid, federation) for _ in range(2)]
    with compiled_seconds() as spent:
        began = time.process_time()
        stacked = seconds(lambda: run_stacked(stacks.pop(), threads=THREADS), repeats=2) / (ROUNDS * len(grid))
        used = (time.process_time() - began) / (2 * ROUNDS * len(grid))
    sweep = whole_sweep(name, strengths, seeds)
    found = Round(plain, sequential, sweep, stacked, used, sum(spent) / (2 * ROUNDS * len(grid)))
    print(
        f"  {name}, one round of one run: plain loop {plain * 1e3:.0f} ms, sequential {sequential * 1e3:.0f} ms; a "
        f"sweep of {len(grid)} runs {sweep * 1e3:.2f} ms; one process {stacked * 1e3:.2f} ms by the clock, "
        f"{used * 1e3:.2f} ms of processors, of which {found.training * 1e3:.2f} ms compiled training"
    )
    return found


def whole_sweep(name: str, strengths: int, seeds: int) -> float:
    """Seconds a round of a run, with all that a sweep takes: reading data, starting processes, the last evaluation."""
    grid = Grid(tuple(np.linspace(0, 2, strengths)), seeds, ("mmd_fedavg",), (math.inf,))
    configs = [job.config for job in grid.jobs(config(name, WHOLE_ROUNDS))]
    began = time.perf_counter()
    rows = [row for _, row in run_many(configs, "stacked", THREADS)]
    took = time.perf_counter() - began
    if {row["status"] for row in rows} != {"done"}:
        raise RuntimeError(f"runs of the sweep failed: {next(row['reason'] for row in rows if row['reason'])}")
    return took / (WHOLE_ROUNDS * len(configs))


@contextmanager
def compiled_seconds() -> Iterator[list[float]]:
    """Processor seconds of every call of the compiled training, while it is open."""
    spent: list[float] = []
    real = fused.train_jobs

    def timed(*args: Any) -> None:
        began = time.thread_time()
        real(*args)
        spent.append(time.thread_time() - began)

    fused.train_jobs = timed
    try:
        yield spent
    finally:
        fused.train_jobs = real


def compas() -> list[Result]:
    federation = load("compas")
    found = per_round(federation, "compas", STRENGTHS, SEEDS)
    print_limit(federation, found)
    plain, sequential, stacked = found.plain, found.sequential, found.sweep
    return [
        Result("COMPAS sweep, stacked: times faster than a plain PyTorch loop", plain / stacked, 25, "×"),
        Result("COMPAS sweep, stacked: times faster than the sequential engine", sequential / stacked, 8, "×"),
        Result(
            "COMPAS sweep, 500 runs of 100 rounds: minutes",
            500 * WHOLE_ROUNDS * stacked / 60,
            20,
            "min",
            at_least=False,
        ),
    ]


def communities() -> list[Result]:
    federation = load("communities")
    found = per_round(federation, "communities", 25, 2)
    print_limit(federation, found)
    name = "Communities sweep, stacked: times faster than a plain PyTorch loop"
    return [Result(name, found.plain / found.sweep, 25, "×")]


def print_limit(federation: Federation, found: Round) -> None:
    """How far the compiled training is from what a core can do, and what else takes time."""
    records = training.EPOCHS * sum(len(c.train) for c in federation.clients)
    width, hidden = len(federation.schema.features), 16
    products = 2 * records * (2 * width * hidden + 3 * hidden)  # two passes of the first layer, three of the last
    core = arithmetic_limit()
    print(
        f"    {width} features: compiled training {found.training / records * 1e9:.0f} ns a record, "
        f"{products / found.training / 1e9:.1f} Gflop/s on one core, {products / found.training / core:.0%} of the "
        f"{core / 1e9:.0f} that a large matrix product reaches; what else a step does (laying records side by side, "
        f"sigmoids, looking up the witness) has no products. Outside of it, {1 - found.training / found.used:.0%} of "
        "the processors' time: minibatches, scores, messages and their checks, in Python"
    )


def growth() -> list[Result]:
    """One run with more and more clients of 50 records each."""

    def cost(clients: int) -> float:
        stacks = [build_stacked([config("synthetic", 1)], made_up(clients)) for _ in range(3)]
        return seconds(lambda: run_stacked(stacks.pop(), threads=THREADS), repeats=3) / clients

    costs = {}
    for clients in (100, 300, 1000, 3000, 10_000):
        costs[clients] = cost(clients)
        print(f"  {clients} clients of 50 records: {costs[clients] * 1e6:.0f} µs a client and round")
    return [Result("10,000 clients: cost of a client, in that of 1,000", costs[10_000] / costs[1000], 1.3, "×", False)]


def made_up(clients: int) -> Federation:
    """Clients with 50 training records and 2 test records each."""
    rng = np.random.default_rng(0)
    names = tuple(f"x{i}" for i in range(8))
    schema = Schema(names, "binary", "y", (0.0, 1.0), (SensitiveAttribute("group", ("0", "1")),))

    def records(count: int) -> Records:
        x = rng.normal(size=(count, 8)).astype(np.float32)
        groups = rng.integers(2, size=(count, 1))
        return Records(x, (x.sum(axis=1) > 0).astype(np.float32), groups, np.zeros((count, 0), dtype=bool))

    return Federation("made up", schema, tuple(ClientData(f"c{k}", records(50), records(2)) for k in range(clients)))


def private() -> list[Result]:
    """One round of DP-SGD of every client: Opacus one after the other, and the stacked engine.

    Local training alone, without ledger and planning. With seeded noise, runs of one seed share their draws; with the
    system's, drawing takes most of the time, and every client draws for itself in both engines.
    """
    federation = load("compas")
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for seeded in (True, False):
            run_table = {"reproducible_noise": seeded, "ledger": f"sqlite:///{folder}/{seeded}.sqlite"}
            noise = {"noise_multiplier": 1.0, "prediction_noise": 0.3, "count_noise": 2.0}
            privacy = {**noise, "sampling_rate": 0.1, "prediction_rate": 0.05}
            plain = {"privacy": privacy, "aggregation": {"scheme": "plain"}}
            tables = [
                {**config("compas", 1).as_tables(), **plain, "run": {**run_table, "seed": s}} for s in range(SEEDS)
            ]
            settings = [build(Config.build(t), federation) for t in tables for _ in range(STRENGTHS)]
            asked = [(c, private_request(c, s.replica.parameters)) for s in settings for c in s.clients]
            engine = Engine([c for c, _ in asked], threads=THREADS)
            one = asked[: len(federation.clients)]
            respond(one[0][0], one[0][1])  # imports Opacus
            alone = _one_thread(lambda: [respond(c, r) for c, r in one])  # noqa: B023 - called at once
            together = _one_thread(lambda: engine.replies(asked)) / len(settings)  # noqa: B023
            engine.close()
            for s in settings:
                s.close()
            kind = "seeded noise" if seeded else "the system's noise"
            print(f"  DP-SGD, {kind}: Opacus {alone * 1e3:.0f} ms, stacked {together * 1e3:.2f} ms a round of one run")
            name = f"COMPAS private sweep, stacked ({kind}): times faster than Opacus sequentially"
            results.append(Result(name, alone / together, 20, "×"))
    return results


def private_request(client: Client, start: Any) -> TrainRequest:
    """The paper's penalty with 100 shared scores a group; 10 epochs in the mean."""
    rng = np.random.default_rng(1)
    scores = tuple(rng.random(training.SAMPLES) for _ in range(2))
    counts = np.array([2000.0, 1970.0])
    shared = SharedScores("energy", 1.0, scores, equal_weights(scores), counts, 3970.0, (0.0, 1.0))
    work = PrivateWork(100, 0.1, 1.0, 1.0, 100.0, 0.05)
    request = TrainRequest(round=0, model=Parameters(start), objective=Tracked(shared), work=work, weight=0.3)
    return replace(request)


def _one_thread(work: Callable[[], object]) -> float:
    """Seconds, the quickest of three, without threads within an operation."""
    with one_thread():
        return seconds(work, repeats=3)


def arithmetic_limit() -> float:
    """Operations a second that a large product of single-precision matrices reaches on one core."""
    size = 1500
    a, b = torch.rand(size, size), torch.rand(size, size)
    with one_thread():
        return 2 * size**3 / seconds(lambda: a @ b, repeats=5)
