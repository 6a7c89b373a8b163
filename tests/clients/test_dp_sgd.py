from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from accountant.errors import InputError
from privfair.clients import training as dp_sgd
from privfair.clients.client import build_losses
from privfair.clients.opacus_engine import NoisyMean
from privfair.clients.training import train_privately
from privfair.federated.messages import LocalWork, OwnPenalty, PrivateWork, Task
from privfair.models import FlatModel
from privfair.per_record import grid_of
from tests.clients.setting import FEATURES, PRIVATE, client, model, perceptron, request, seeded, subset, tracked


def clipped_sum(data, flat: FlatModel, objective, bound: float) -> np.ndarray:
    """Σ g_i·min(1, C/‖g_i‖), by autograd one record at a time and clipping by hand."""
    losses = build_losses(objective, data, flat)
    flat.module.train()
    total = np.zeros(flat.flat.numel())
    for i in range(len(data.y)):
        loss = losses(torch.tensor([i]), flat.outputs(data.x[i : i + 1]))[0]
        parts = torch.autograd.grad(loss, flat.trainable, allow_unused=True)
        g = np.concatenate(
            [
                np.zeros(p.numel()) if part is None else part.numpy().ravel()
                for p, part in zip(flat.trainable, parts, strict=True)
            ]
        )
        total += g * min(1.0, bound / max(np.linalg.norm(g), 1e-300))
    return total


def change(work: PrivateWork, data, flat: FlatModel, objective=None, seed: int = 0, **kwargs) -> np.ndarray:
    start = flat.parameters()
    asked = request(work, objective)
    found = train_privately(asked, start, data, flat, seeded(seed), **kwargs)
    assert found.steps == work.steps
    flat.load(start)
    return found.parameters - start


class Scaled(nn.Module):
    """A layer for which Opacus has no sampler."""

    def __init__(self) -> None:
        super().__init__()
        self.factors = nn.Parameter(torch.linspace(0.5, 2.0, FEATURES))
        self.inner = nn.Linear(FEATURES, FEATURES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x * self.factors).relu()


def twice() -> nn.Module:
    shared = nn.Linear(FEATURES, FEATURES)
    return nn.Sequential(shared, nn.Tanh(), shared, nn.ReLU(inplace=True), nn.Linear(FEATURES, 1))


def frozen() -> nn.Module:
    module = nn.Sequential(nn.Linear(FEATURES, 3), nn.Tanh(), nn.Linear(3, 1))
    module[0].weight.requires_grad_(False)
    return module


MODULES = {
    "logistic": lambda: nn.Linear(FEATURES, 1),
    "perceptron": lambda: perceptron(),
    "layer norm": lambda: perceptron(nn.LayerNorm(5)),
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, FEATURES)),
        nn.Conv1d(1, 4, 2),
        nn.GroupNorm(2, 4),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(12, 1),
    ),
    "no sampler": lambda: nn.Sequential(Scaled(), nn.Linear(FEATURES, 1)),
    "layer used twice": twice,
    "in place": lambda: nn.Sequential(nn.Linear(FEATURES, 6), nn.ReLU(inplace=True), nn.Linear(6, 1, bias=False)),
    "three dimensions": lambda: nn.Sequential(
        nn.Unflatten(1, (FEATURES, 1)), nn.Linear(1, 3), nn.Tanh(), nn.Flatten(), nn.Linear(3 * FEATURES, 1)
    ),
    "frozen": frozen,
}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("penalty", [False, True])
def test_equals_a_loop_over_records(name: str, penalty: bool) -> None:
    torch.manual_seed(1)
    flat, data = FlatModel(MODULES[name]().double()), client(20)
    objective = tracked(data, strength=2.0) if penalty else Task()
    start = flat.parameters()
    for bound in (0.05, 0.5, 100.0):  # all, some and none are clipped
        expected = -clipped_sum(data, flat, objective, bound) / PRIVATE.divisor
        found = change(replace(PRIVATE, max_grad_norm=bound), data, flat, objective)
        # Opacus clips to C·‖g‖/(‖g‖ + 1e-6), at most 1e-6·C/‖g‖ short for each of 20 records
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * max(1.0, np.abs(expected).max()))
        np.testing.assert_array_equal(flat.parameters(), start)


def test_clips_as_opacus_does() -> None:
    from opacus.optimizers import DPOptimizer

    rng = np.random.default_rng(0)
    gradients = torch.from_numpy(rng.normal(size=(30, 8)) * rng.exponential(size=(30, 1)))
    work = replace(PRIVATE, max_grad_norm=1.5)
    parameter = nn.Parameter(torch.zeros(8, dtype=torch.float64))
    theirs = DPOptimizer(
        torch.optim.SGD([parameter], lr=1.0), noise_multiplier=0.0, max_grad_norm=1.5, expected_batch_size=7
    )
    parameter.grad_sample = gradients.clone()  # type: ignore[attr-defined]
    theirs.pre_step()
    assert parameter.grad is not None
    for parts in ([gradients.clone()], [gradients[:11].clone(), gradients[11:].clone()]):
        found = NoisyMean(8, work, seeded()).of(parts)
        # each of 30 records is short of Opacus' by a step of the grid and by 2⁻²⁸ of itself, 1.5 at most
        atol = 30 * (grid_of(1.5) + 1.5 * 2.0**-28) / 7
        torch.testing.assert_close(found, parameter.grad, rtol=0, atol=atol)


def test_large_minibatches_go_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    data, flat = client(20), model()
    work = replace(PRIVATE, noise_multiplier=0.3, steps=3)
    at_once = change(work, data, flat, tracked(data))
    monkeypatch.setattr(dp_sgd, "_GRADIENTS_AT_ONCE", 3 * flat.flat.numel())
    np.testing.assert_allclose(change(work, data, flat, tracked(data)), at_once, rtol=0, atol=1e-12)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_without_noise_and_clipping_it_is_full_batch_descent(optimizer: str) -> None:
    data, flat = client(), model()
    bound = 100.0
    work = PrivateWork(6, 1.0, 0.0, bound, 12.0, 0.1, 0.2, optimizer)  # type: ignore[arg-type]
    shift = np.random.default_rng(2).normal(size=flat.flat.numel())
    module = perceptron()
    kind = torch.optim.Adam if optimizer == "adam" else torch.optim.SGD
    stepper = kind(module.parameters(), lr=0.1)
    for _ in range(6):
        stepper.zero_grad()
        now = torch.cat([p.reshape(-1) for p in module.parameters()])
        loss = nn.functional.binary_cross_entropy_with_logits(module(data.x).reshape(-1), data.y)
        pull = 0.1 * (now - torch.from_numpy(flat.parameters())).square().sum()
        (loss + pull + now @ torch.from_numpy(shift)).backward()
        stepper.step()
    expected = np.concatenate([p.detach().numpy().ravel() for p in module.parameters()])
    # each of 12 records loses a step of the grid in each of 6 steps of size 0.1; Adam divides by gradients of about 1
    atol = 6 * 0.1 * 2 * grid_of(bound) * (1 if optimizer == "sgd" else 10)
    np.testing.assert_allclose(change(work, data, flat, shift=shift) + flat.parameters(), expected, rtol=0, atol=atol)


def test_noise_is_multiplier_times_bound_over_divisor() -> None:
    flat = model()
    work = PrivateWork(50, 0.5, 1.3, 0.5, 7.0, 1.0)
    total = []
    for seed in range(40):  # no records: a sum of 50 steps of noise alone
        total.append(change(work, client(0), flat, seed=seed))
    draws = np.concatenate(total) / (1.3 * 0.5 / 7.0 * math.sqrt(50))
    # 5 standard errors of the mean and of the variance of normals: false alarm below 2e-6
    assert abs(draws.mean()) < 5 / math.sqrt(draws.size)
    assert abs(draws.var() - 1) < 5 * math.sqrt(2 / draws.size)


def test_noise_is_fresh_in_every_step_and_reaches_every_parameter() -> None:
    flat = model()
    one, two = (change(replace(PRIVATE, noise_multiplier=1.0, steps=s), client(0), flat) for s in (1, 2))
    assert np.all(one != 0)
    assert np.all(two != 2 * one)
    assert np.unique(np.abs(one)).size == one.size


def test_pull_and_shift_are_not_divided_or_clipped() -> None:
    flat = model()
    shift = np.full(flat.flat.numel(), 100.0)
    work = replace(PRIVATE, learning_rate=0.5, steps=2, proximal=1.0)
    # θ₁ = −50; θ₂ = θ₁ − 0.5·(100 + θ₁)
    np.testing.assert_allclose(change(work, client(0), flat, shift=shift), -75.0)


def test_divisor_is_the_planned_one() -> None:
    data, flat = client(), model()
    few = subset(data, [0, 1, 2])
    for part in (data, few):
        one, two = (change(replace(PRIVATE, divisor=d), part, flat) for d in (5.0, 10.0))
        np.testing.assert_allclose(one, 2 * two, rtol=1e-9, atol=1e-15)


class Chosen:
    """Choices from a list, in its order, and 1 for all noise."""

    def __init__(self, choices: list[bool]) -> None:
        self.choices, self.rates = choices, set[float]()

    def poisson_mask(self, n: int, rate: float) -> np.ndarray:
        self.rates.add(rate)
        taken, self.choices = self.choices[:n], self.choices[n:]
        return np.array(taken, dtype=bool)

    def normal(self, size: int) -> np.ndarray:
        return np.ones(size)


@pytest.mark.parametrize("at_once", [1, 7, 100])  # choices for one, two and all three steps of three records
def test_minibatches_are_those_of_the_mask_and_may_be_empty(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dp_sgd, "_CHOICES_AT_ONCE", at_once)
    data, flat = client(3), model()
    start = flat.parameters()
    masks = [[True, False, True], [False] * 3, [False, True, False]]
    entropy = Chosen([choice for mask in masks for choice in mask])
    work = replace(PRIVATE, steps=3, sampling_rate=0.25, noise_multiplier=2.0, max_grad_norm=0.1)
    found = train_privately(request(work), start, data, flat, entropy)  # type: ignore[arg-type]
    assert entropy.rates == {0.25}
    assert entropy.choices == []  # one for every record and step, none left over
    flat.load(start)
    for mask in masks:
        taken = subset(data, [int(i) for i in np.flatnonzero(mask)])
        flat.load(flat.parameters() - (clipped_sum(taken, flat, Task(), 0.1) + 2.0 * 0.1) / PRIVATE.divisor)
    np.testing.assert_allclose(found.parameters, flat.parameters(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("records", [0, 1, 30])
def test_the_answer_has_one_form(records: int) -> None:
    flat = model()
    work = replace(PRIVATE, steps=5, sampling_rate=0.01, noise_multiplier=1.0)
    asked = request(work, snapshot_at=0.5)
    found = train_privately(asked, flat.parameters(), client(records), flat, seeded())
    assert (found.steps, found.parameters.shape, found.parameters.dtype) == (5, flat.flat.shape, np.float64)
    assert found.snapshot is not None
    assert found.snapshot.shape == flat.flat.shape
    assert np.all(found.parameters != found.snapshot)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3e38])
def test_a_record_that_is_not_finite_changes_nothing_but_itself(value: float) -> None:
    for objective in (Task(), tracked(client())):
        flat, data = model(), client()
        bad = client()
        bad.x[4, 1] = value
        repaired = client()
        repaired.x[4, 1] = value if np.isfinite(value) else 0.0  # a feature that is not finite counts as 0
        np.testing.assert_array_equal(change(PRIVATE, bad, flat, objective), change(PRIVATE, repaired, flat, objective))
        bad = client()
        bad.y[4] = np.nan  # the loss is not finite whatever the features: the record has no gradient
        others = subset(data, [i for i in range(12) if i != 4])
        np.testing.assert_allclose(
            change(PRIVATE, bad, flat, objective), change(PRIVATE, others, flat, objective), rtol=0, atol=1e-14
        )


def test_overflow_inside_the_model_is_one_record_s_own_affair() -> None:
    flat = FlatModel(perceptron().float())
    single = replace(client(), x=client().x.float(), y=client().y.float())
    single.x[4] = 3e38  # finite, but the activations are not
    found = change(PRIVATE, single, flat)
    others = subset(single, [i for i in range(12) if i != 4])
    assert np.all(np.isfinite(found))
    bound = PRIVATE.max_grad_norm / PRIVATE.divisor
    assert np.linalg.norm(found - change(PRIVATE, others, flat)) <= bound * (1 + 1e-5)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10**6),
    st.floats(-6, 6),
    st.floats(1e-3, 100),
    st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=FEATURES, max_size=FEATURES),
)
def test_one_record_moves_the_sum_by_at_most_the_bound(seed: int, size: float, bound: float, record: list) -> None:
    data, flat = client(8, seed=seed), model()
    flat.load(flat.parameters() * 10**size)
    data.x[7] = torch.tensor(record, dtype=torch.float64)
    work = replace(PRIVATE, max_grad_norm=bound, divisor=1.0)
    objective = tracked(data, strength=50.0)
    # from 0, so that the change is the sum itself and does not drown in the parameters
    sums = []
    for part in (data, subset(data, list(range(7)))):
        noisy = NoisyMean(flat.flat.numel(), work, seeded())
        sums.append(noisy.of([gradients(part, flat, objective)]))
    assert torch.isfinite(sums[0]).all()
    moved = [Fraction(a) - Fraction(b) for a, b in zip(*(s.tolist() for s in sums), strict=True)]
    assert sum(m * m for m in moved) <= Fraction(bound) ** 2  # exactly, rounding included


def gradients(data, flat: FlatModel, objective) -> torch.Tensor:
    from privfair.clients.opacus_engine import PerExampleGradients

    flat.module.train()
    sampler, data = PerExampleGradients(flat.module, flat.trainable), data.each_record_alone
    try:
        with flat.each_record_alone():
            return sampler.of(build_losses(objective, data, flat)(torch.arange(len(data.y)), flat.outputs(data.x)))
    finally:
        sampler.cleanup()


def test_nothing_is_left_behind() -> None:
    for make in (lambda: nn.Sequential(Scaled(), nn.Dropout(0.3), nn.Linear(FEATURES, 1)), perceptron):
        flat, data = FlatModel(make().double()), client()
        before = [set(vars(m)) for m in flat.module.modules()], [set(vars(p)) for p in flat.trainable]
        change(replace(PRIVATE, steps=2), data, flat)
        for m in flat.module.modules():
            assert not m._forward_hooks
            assert not m._backward_hooks
        assert before == ([set(vars(m)) for m in flat.module.modules()], [set(vars(p)) for p in flat.trainable])
        assert not flat.module.training
        flat.gradient.fill_(3.0)
        for p in flat.trainable:  # still views of the flat tensors
            assert p.grad is not None
            assert torch.all(p.grad == 3.0)
        flat.flat.fill_(2.0)
        assert all(bool(torch.all(p == 2.0)) for p in flat.trainable)


def test_nothing_is_left_behind_by_a_failure() -> None:
    class Broken(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            super().forward(x)
            raise RuntimeError("broken")

    flat = FlatModel(nn.Sequential(nn.Linear(FEATURES, 2), Broken(2, 1)).double())
    with pytest.raises(RuntimeError, match="broken"):
        change(PRIVATE, client(), flat)
    assert not any(m._forward_hooks for m in flat.module.modules())
    assert not flat.module.training


def test_dropout_is_drawn_anew_and_only_in_training() -> None:
    flat, data = FlatModel(perceptron(nn.Dropout(0.5))), client()
    torch.manual_seed(0)
    first, second = change(PRIVATE, data, flat), change(PRIVATE, data, flat)
    assert not np.allclose(first, second)
    torch.manual_seed(0)
    np.testing.assert_array_equal(change(PRIVATE, data, flat), first)


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (LocalWork(1, None, 0.1), "work must be PrivateWork, for training with privacy; found 'LocalWork'."),
        (replace(PRIVATE, sampling_rate=64.0), "sampling_rate must be in (0, 1]; found 64.0. It is a probability"),
        (replace(PRIVATE, noise_multiplier=-1.0), "noise_multiplier must be 0 or more; found -1.0."),
        (replace(PRIVATE, noise_multiplier=math.nan), "noise_multiplier must be finite; found nan."),
        (replace(PRIVATE, max_grad_norm=0.0), "max_grad_norm must be above 0; found 0.0."),
        (replace(PRIVATE, divisor=0.0), "divisor must be above 0; found 0.0. It is the planned size of a minibatch."),
        (replace(PRIVATE, steps=-1), "steps must be a whole number, 0 or more; found -1."),
        (replace(PRIVATE, learning_rate=math.inf), "learning_rate must be finite; found inf."),
    ],
)
def test_work_that_makes_no_sense(work, message: str) -> None:
    flat = model()
    with pytest.raises(InputError) as error:
        train_privately(request(work), flat.parameters(), client(), flat, seeded())
    assert str(error.value).startswith(message)


def test_objectives_that_couple_records_are_refused() -> None:
    data, flat = client(), model()
    for objective, reason in (
        (OwnPenalty("energy", 1.0), "Here the penalty compares the groups within the client's own minibatch, so"),
        (tracked(data, drift="own"), "Here the drift correction follows the present predictions of all the"),
    ):
        with pytest.raises(InputError, match="must be a sum of losses of single records") as error:
            change(PRIVATE, data, flat, objective)
        assert reason in str(error.value)
