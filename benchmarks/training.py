"""One COMPAS run on the sequential engine, against the loop one would write in plain PyTorch.

λ = 1, batch 100, 16 hidden units, 10 local epochs; both are timed on some of the 100 rounds, which are all alike.
"""

from __future__ import annotations

import os

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.measure import Result, seconds
from privfair.config import Config
from privfair.datasets.records import Federation
from privfair.datasets.registry import load
from privfair.runs.assembly import build
from privfair.runs.loop import run as run_rounds
from privfair.util import one_thread

ROUNDS = 3
EPOCHS = 10
BATCH = 100
SAMPLES = 100


def run() -> list[Result]:
    if not os.environ.get("PRIVFAIR_DATA"):
        print("  skipped: PRIVFAIR_DATA does not point to the COMPAS file")
        return []
    federation = load("compas")
    plain_loop(federation, rounds=1)  # torch.optim imports for seconds when it is first used
    with one_thread():  # as our engine does: for tensors this small threads only wait for each other
        plain = seconds(lambda: plain_loop(federation), repeats=3)
    config = Config.build(
        {
            "data": {"name": "compas"},
            "model": {"name": "mlp", "hidden": [16]},
            "fairness": {"lambda": 1.0, "samples": SAMPLES},
            "federation": {"rounds": ROUNDS, "local_epochs": EPOCHS, "batch_size": BATCH, "learning_rate": 0.05},
        }
    )
    settings = [build(config, federation) for _ in range(3)]
    ours = seconds(lambda: run_rounds(settings.pop()), repeats=3)
    steps = ROUNDS * EPOCHS * sum(-(-len(c.train) // BATCH) for c in federation.clients)
    return [
        Result("COMPAS, sequential engine: times faster than a plain PyTorch loop", plain / ours, 3, "×"),
        Result("COMPAS, sequential engine: milliseconds a local step", ours / steps * 1e3, 2, "ms", at_least=False),
    ]


def plain_loop(federation: Federation, rounds: int = ROUNDS) -> None:
    """Fairness tracking with DataLoader, torch.optim and autograd through the batch × samples kernel matrix."""
    torch.manual_seed(0)
    width = len(federation.schema.features)
    server = nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, 1))
    clients = [
        TensorDataset(*(torch.tensor(np.array(a)) for a in (c.train.features, c.train.labels, c.train.groups[:, 0])))
        for c in federation.clients
    ]
    total = sum(len(c) for c in clients)
    share = torch.tensor([np.mean([g == a for c in federation.clients for g in c.train.groups[:, 0]]) for a in (0, 1)])
    for _ in range(rounds):
        scores: list[list[torch.Tensor]] = [[], []]
        with torch.no_grad():
            for data in clients:
                x, _, a = data.tensors
                p = torch.sigmoid(server(x)).squeeze(1)
                for group in (0, 1):
                    mine = p[a == group]
                    count = round(SAMPLES * len(mine) / (total * float(share[group])))
                    scores[group].append(mine[torch.randperm(len(mine))[:count]])
        y0, y1 = torch.cat(scores[0]), torch.cat(scores[1])
        states = []
        for data in clients:
            local = nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, 1))
            local.load_state_dict(server.state_dict())
            optimizer = torch.optim.SGD(local.parameters(), lr=0.05)
            for _ in range(EPOCHS):
                for x, label, a in DataLoader(data, batch_size=BATCH, shuffle=True):
                    logits = local(x).squeeze(1)
                    p = torch.sigmoid(logits)
                    witness = (y1[None, :] - p[:, None]).abs().mean(1) / 2 - (y0[None, :] - p[:, None]).abs().mean(
                        1
                    ) / 2
                    penalty = (2 * (1 - 2 * a) / share[a] * witness).mean()
                    loss = nn.functional.binary_cross_entropy_with_logits(logits, label) + penalty
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
            states.append((len(data) / total, local.state_dict()))
        server.load_state_dict({k: sum(w * s[k] for w, s in states) for k in server.state_dict()})
