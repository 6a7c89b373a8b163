from __future__ import annotations

import numpy as np
import pytest
import torch

from privfair.clients.client import build_losses, couples_records
from privfair.federated.messages import OwnPenalty, Reweighted, Task
from privfair.kernels.families import parse_kernel
from privfair.kernels.mmd import mmd2
from privfair.kernels.witness import witness
from tests.clients.setting import client, model, subset, tracked


def per_example(objective, data, flat):
    """Autograd's gradient of each record's loss, one record at a time."""
    losses = build_losses(objective, data, flat)
    batch = torch.arange(len(data.y))
    values = losses(batch, flat.outputs(data.x))
    rows = [torch.autograd.grad(v, flat.trainable, retain_graph=True) for v in values]
    return np.stack([np.concatenate([g.reshape(-1).numpy() for g in row]) for row in rows])


@pytest.mark.parametrize("kernel", ["gaussian:0.3", "energy"])
def test_tracked_gradients_are_those_of_the_exact_witness(kernel: str) -> None:
    data, flat = client(), model()
    objective = tracked(data, strength=0.7, kernel=kernel)
    found = per_example(objective, data, flat)
    exact = witness(*objective.shared.scores, parse_kernel(kernel), domain=(0.0, 1.0), tolerance=1e-12)
    share = objective.shared.counts / objective.shared.records
    for i, group in enumerate(data.records.groups[:, 0]):
        output = flat.outputs(data.x[i : i + 1])
        score = torch.sigmoid(output)
        task = torch.nn.functional.binary_cross_entropy_with_logits(output, data.y[i : i + 1])
        loss = task + 2 * 0.7 * (1 - 2 * group) / share[group] * exact(score).sum()
        true = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, flat.trainable)]).numpy()
        np.testing.assert_allclose(found[i], true, rtol=0, atol=1e-6 * np.abs(true).max())


@pytest.mark.parametrize("kind", ["task", "tracked", "reweighted"])
def test_a_record_s_loss_ignores_the_other_records(kind: str) -> None:
    data, flat = client(), model()
    objective = {
        "task": Task(),
        "tracked": tracked(data),
        "reweighted": Reweighted(np.array([[1.0, 2.0], [3.0, 4.0]])),
    }[kind]
    assert couples_records(objective) is None
    full = build_losses(objective, data, flat)(torch.arange(12), flat.outputs(data.x))
    some = [1, 4, 8]
    part = build_losses(objective, subset(data, some), flat)(torch.arange(3), flat.outputs(data.x[some]))
    torch.testing.assert_close(part, full[some])


def test_reweighted_losses() -> None:
    data, flat = client(), model()
    weights = np.array([[1.0, 2.0], [3.0, 4.0]])
    plain = build_losses(Task(), data, flat)(torch.arange(12), flat.outputs(data.x))
    found = build_losses(Reweighted(weights), data, flat)(torch.arange(12), flat.outputs(data.x))
    factors = weights[data.records.groups[:, 0], data.records.labels.astype(int)]
    torch.testing.assert_close(found, plain * torch.from_numpy(factors))


def test_mean_of_own_penalty_has_the_gradient_of_mmd2() -> None:
    data, flat = client(), model()
    losses = build_losses(OwnPenalty("gaussian:0.3", 1.5), data, flat)(torch.arange(12), flat.outputs(data.x))
    found = torch.autograd.grad(losses.mean(), flat.trainable)
    outputs = flat.outputs(data.x)
    scores = torch.sigmoid(outputs)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(outputs, data.y)
    loss = loss + 1.5 * mmd2(scores[::2], scores[1::2], parse_kernel("gaussian:0.3"))
    for mine, true in zip(found, torch.autograd.grad(loss, flat.trainable), strict=True):
        torch.testing.assert_close(mine, true, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("kind", ["task", "tracked", "drift", "own", "reweighted"])
def test_empty_minibatch_and_no_records(kind: str) -> None:
    for data in (client(), client(0)):
        objective = {
            "task": Task(),
            "tracked": tracked(data),
            "drift": tracked(data, drift="shared"),
            "own": OwnPenalty("energy", 1.0),
            "reweighted": Reweighted(np.ones((2, 2))),
        }[kind]
        flat = model()
        nobody = torch.zeros(0, dtype=torch.int64)
        assert build_losses(objective, data, flat)(nobody, flat.outputs(data.x[nobody])).shape == (0,)


def test_why_records_are_coupled() -> None:
    data = client()
    assert couples_records(tracked(data)) is None
    assert couples_records(tracked(data, drift="own")) == (
        "the drift correction follows the present predictions of all the client's records"
    )
    assert couples_records(OwnPenalty("energy", 1.0)) == (
        "the penalty compares the groups within the client's own minibatch"
    )


def test_a_score_that_is_not_finite_spoils_its_own_loss_only() -> None:
    data, flat = client(), model()
    outputs = flat.outputs(data.x).detach()
    spoilt = outputs.clone()
    spoilt[3] = float("nan")
    losses = build_losses(tracked(data), data, flat)
    clean, found = losses(torch.arange(12), outputs), losses(torch.arange(12), spoilt)
    assert torch.isnan(found[3])
    keep = [i for i in range(12) if i != 3]
    assert torch.equal(found[keep], clean[keep])
