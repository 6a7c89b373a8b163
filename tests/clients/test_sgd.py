from __future__ import annotations

import numpy as np
import pytest
import torch

from accountant.errors import InputError
from privfair.clients.client import build_losses
from privfair.clients.training import minibatches, train_locally
from privfair.federated.messages import LocalWork
from tests.clients.setting import PRIVATE, client, model, perceptron, request, tracked


def torch_loop(work: LocalWork, data, objective, shift: np.ndarray | None) -> list[np.ndarray]:
    """The parameters after each step of the loop one would write with torch.optim."""
    module = perceptron()
    flat = model()  # for the penalty only
    kind = torch.optim.Adam if work.optimizer == "adam" else torch.optim.SGD
    optimizer = kind(module.parameters(), lr=work.learning_rate)
    start = [p.detach().clone() for p in module.parameters()]
    losses = build_losses(objective, data, flat)
    path = []
    for positions in minibatches(len(data.y), work, np.random.default_rng(3)):
        batch = torch.from_numpy(positions)
        loss = losses(batch, module(data.x[batch]).reshape(-1)).mean()
        loss = loss + work.proximal / 2 * sum(
            (p - s).square().sum() for p, s in zip(module.parameters(), start, strict=True)
        )
        if shift is not None:
            flat_parameters = torch.cat([p.reshape(-1) for p in module.parameters()])
            loss = loss + flat_parameters @ torch.from_numpy(shift)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        path.append(np.concatenate([p.detach().numpy().ravel() for p in module.parameters()]))
    return path


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize(("batch_size", "proximal", "shifted"), [(5, 0.0, False), (None, 0.3, False), (5, 0.3, True)])
def test_equals_a_torch_loop(optimizer, batch_size, proximal, shifted) -> None:
    data, flat = client(), model()
    work = LocalWork(3, batch_size, 0.1, proximal, optimizer)
    start = flat.parameters()
    shift = np.random.default_rng(1).normal(size=start.size) if shifted else None
    for objective in (None, tracked(data)):
        asked = request(work, objective, snapshot_at=0.5)
        path = torch_loop(work, data, asked.objective, shift)
        for _ in range(2):  # the second time from the same start: Adam has forgotten the first
            found = train_locally(asked, start, data, flat, np.random.default_rng(3), shift)
            assert found.steps == len(path)
            np.testing.assert_allclose(found.parameters, path[-1], rtol=0, atol=1e-10)
            np.testing.assert_allclose(found.snapshot, path[-(-len(path) // 2) - 1], rtol=0, atol=1e-10)


def test_wrong_work_and_optimizer() -> None:
    data, flat = client(), model()
    with pytest.raises(InputError, match=r"work must be LocalWork, for training without privacy; found 'PrivateWork'"):
        train_locally(request(PRIVATE), flat.parameters(), data, flat, np.random.default_rng(0))
    unknown = LocalWork(1, None, 0.1, optimizer="lion")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="local optimizer must be sgd or adam; found 'lion'"):
        train_locally(request(unknown), flat.parameters(), data, flat, np.random.default_rng(0))


def test_result_is_a_copy() -> None:
    data, flat = client(), model()
    found = train_locally(
        request(LocalWork(1, None, 0.1), snapshot_at=1.0), flat.parameters(), data, flat, np.random.default_rng(0)
    )
    before = found.parameters.copy()
    flat.flat.zero_()
    np.testing.assert_array_equal(found.parameters, before)
    np.testing.assert_array_equal(found.snapshot, before)
