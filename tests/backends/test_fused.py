"""The compiled training against independent code: autograd, the kernels' own sums, numpy's sort."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from torch import nn

from privfair.datasets.records import Schema, SensitiveAttribute
from privfair.engines.batched.compiled.training import (
    Outcome,
    add_own,
    backward,
    backward_layer,
    clipped_sums,
    forward,
    forward_layer,
    layer,
    sorted_order,
    starts,
    sum_layers,
    task_slopes,
)
from privfair.engines.batched.compiled.witness import add_tracked, can_be_packed, packed_witness
from privfair.fairness.notions import Cells, notion_by_name
from privfair.fairness.tracking import NoisyScores, SharedScores, TrackedPenalty
from privfair.kernels import EnergyKernel
from privfair.kernels.mmd import Pair
from privfair.mechanisms.score_release import ScoreNoise
from privfair.models import TaskKind
from privfair.per_record import grid_of

F64 = np.dtype(np.float64)
WIDTHS = [(3, 1), (5, 4, 1), (7, 16, 1), (6, 5, 9, 1), (11, 8, 3, 2, 1)]


def module(widths: tuple[int, ...], seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after, dtype=torch.float64), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Passes:
    """Activations, what arrives at each layer, and the gradient of Σ pull·output."""

    def __init__(
        self, net: nn.Sequential, widths: tuple[int, ...], x: torch.Tensor, pull: torch.Tensor, *, alone: bool = True
    ) -> None:
        self.count, self.before = len(x), starts(np.array(widths))
        self.inputs = x.numpy().reshape(-1).copy()
        self.acts, self.deltas = (np.zeros(self.before[-1] * (self.count + 3)) for _ in range(2))
        layer(self.acts, self.before, 0, self.count)[:] = x.numpy().T
        theta = torch.cat([p.detach().reshape(-1) for p in net.parameters()]).numpy()
        self.outputs = forward(theta, self.before, self.acts, self.count, alone).copy()
        layer(self.deltas, self.before, len(widths) - 1, self.count)[0] = pull.numpy()
        backward(theta, self.before, self.acts, self.count, self.deltas, alone)
        self.gradient = np.zeros_like(theta)
        self.sum()

    def sum(self) -> None:
        sum_layers(self.before, self.acts, self.inputs, self.deltas, self.count, self.gradient)


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("widths", WIDTHS)
def test_outputs_and_gradients_are_those_of_autograd(widths: tuple[int, ...], alone: bool) -> None:
    net = module(widths, 3)
    x, pull = torch.randn(37, widths[0], dtype=torch.float64), torch.randn(37, dtype=torch.float64)
    done = Passes(net, widths, x, pull, alone=alone)
    expected = net(x)[:, 0]
    (expected * pull).sum().backward()
    assert np.allclose(done.outputs, expected.detach().numpy(), rtol=1e-12, atol=1e-12)
    whole = torch.cat([p.grad.reshape(-1) for p in net.parameters() if p.grad is not None]).numpy()
    assert np.allclose(done.gradient, whole, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("widths", WIDTHS)
def test_clipped_sums_are_those_of_gradients_written_out(widths: tuple[int, ...]) -> None:
    net = module(widths, 4)
    x, pull = torch.randn(20, widths[0], dtype=torch.float64), torch.randn(20, dtype=torch.float64)
    x[5] = float("nan")
    done = Passes(net, widths, x, pull)
    shares = np.zeros(len(x))
    grid = grid_of(0.7)
    clipped_sums(done.before, done.acts, done.inputs, done.deltas, len(x), 0.7, grid, shares, done.gradient)
    expected = np.zeros_like(done.gradient)
    for i in range(len(x)):
        net.zero_grad()
        (net(x[i : i + 1])[0, 0] * pull[i]).backward()
        own = torch.cat([p.grad.reshape(-1) for p in net.parameters() if p.grad is not None])
        share = 0.0 if i == 5 else min(1.0, 0.7 / (own.norm().item() + 1e-6))
        assert shares[i] * grid == pytest.approx(share, rel=2.0**-27)
        if i != 5:
            expected += share * own.numpy()
    # each of 20 records is short by a step of the grid, and by 2⁻²⁸ of itself
    assert np.allclose(done.gradient, expected, rtol=0, atol=20 * (grid + 0.7 * 2.0**-28))


def test_a_hidden_unit_that_is_not_a_number_stays_so() -> None:
    out = np.zeros((1, 2))
    forward_layer(np.array([[1.0]]), np.zeros(1), np.array([[np.nan, -1.0]]), out, True)
    assert np.isnan(out[0, 0])
    assert out[0, 1] == 0.0
    leaving = np.ones((1, 2))
    backward_layer(np.array([[2.0]]), out, np.array([[1.0, 1.0]]), leaving)
    assert leaving[0, 1] == 0.0


@pytest.mark.parametrize("count", [2, 7, 8, 9, 16, 17, 33])
def test_private_passes_give_a_record_the_same_bits_whoever_is_beside_it(count: int) -> None:
    """Otherwise a record that joins could move another one over an edge, and a clipped sum by more than the bound."""
    rng = np.random.default_rng(count)
    widths = np.array([99, 16, 5, 1])
    theta = rng.normal(size=int((widths[:-1] * widths[1:] + widths[1:]).sum())).astype(np.float32)
    before, x = starts(widths), rng.normal(size=(count, 99)).astype(np.float32)

    def passed(rows: NDArray[np.float32]) -> tuple[NDArray[np.float32], ...]:
        acts, deltas = (np.zeros(before[-1] * len(rows), np.float32) for _ in range(2))
        layer(acts, before, 0, len(rows))[:] = rows.T
        forward(theta, before, acts, len(rows), True)
        layer(deltas, before, 3, len(rows))[0] = np.float32(0.3)
        backward(theta, before, acts, len(rows), deltas, True)
        return acts.reshape(-1, len(rows)), deltas.reshape(-1, len(rows))

    alone = [passed(x[i : i + 1]) for i in range(count)]
    for together, parts in zip(passed(x), zip(*alone, strict=True), strict=True):
        assert np.array_equal(together, np.concatenate(parts, axis=1))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**20), st.integers(1, 40), st.floats(-20, 20), st.floats(1e-3, 1e3))
def test_clipped_sums_are_exact_in_any_order_and_no_record_adds_more_than_the_bound(
    seed: int, count: int, size: float, bound: float
) -> None:
    rng = np.random.default_rng(seed)
    before, grid = starts(np.array([5, 3, 1])), grid_of(bound)
    acts, deltas = (10.0**size * rng.normal(size=(9, count)) for _ in range(2))

    def total(chosen: NDArray[np.int64]) -> NDArray[np.float64]:
        gradient, shares = np.zeros(5 * 3 + 3 + 3 + 1), np.zeros(len(chosen))
        a, d = (np.ascontiguousarray(m[:, chosen]).reshape(-1) for m in (acts, deltas))
        inputs = np.ascontiguousarray(acts[:5, chosen].T).reshape(-1)
        clipped_sums(before, a, inputs, d, len(chosen), bound, grid, shares, gradient)
        return gradient

    each = [total(np.array([i])) for i in range(count)]
    assert all(sum(Fraction(g) ** 2 for g in own) <= Fraction(bound) ** 2 for own in each)
    whole = total(rng.permutation(count))
    assert [Fraction(g) for g in whole] == [sum(Fraction(own[p]) for own in each) for p in range(whole.size)]


@settings(max_examples=200, deadline=None)
@given(arrays.arrays(np.float64, st.integers(1, 60), elements=st.floats(-1e6, 1e6, width=64)))
def test_the_order_sorts(scores: NDArray[np.float64]) -> None:
    order = sorted_order(scores, scores.size)
    assert np.array_equal(scores[order], np.sort(scores))
    assert np.array_equal(np.sort(order), np.arange(scores.size))


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_the_order_holds_every_record_whatever_its_score(odd: float) -> None:
    scores = np.array([0.2, odd, 0.1, odd, 0.9])
    assert np.array_equal(np.sort(sorted_order(scores, 5)), np.arange(5))


@pytest.mark.parametrize("task", ["binary", "regression"])
@pytest.mark.parametrize("kind", ["prediction", "loss"])
def test_slopes_of_losses_and_scores_are_those_of_autograd(task: str, kind: str) -> None:
    binary = task == "binary"
    what = TaskKind("binary", 0.0, 1.0) if binary else TaskKind("regression", -2.0, 3.0)
    outputs = torch.linspace(-1.2, 1.3, 23, dtype=torch.float64, requires_grad=True)
    labels = torch.arange(23, dtype=torch.float64) % 2 if binary else torch.linspace(-2, 3, 23, dtype=torch.float64)
    scores, loss, score = (np.zeros(23) for _ in range(3))
    task_slopes(
        Outcome(binary, what.low, what.high, kind == "loss"), outputs.detach().numpy(), labels.numpy(), 23, scores,
        loss, score,
    )  # fmt: skip
    expected = what.scores(outputs, labels, kind)
    assert np.allclose(scores, expected.detach().numpy(), atol=1e-12)
    for values, total in ((loss, what.losses(outputs, labels).sum()), (score, expected.sum())):
        (slopes,) = torch.autograd.grad(total, outputs, retain_graph=True)
        assert np.allclose(values, slopes.numpy(), atol=1e-12)


@pytest.mark.parametrize("ties", [False, True])
def test_own_penalty_has_the_slopes_of_the_mmd(ties: bool) -> None:
    rng = np.random.default_rng(2)
    scores = rng.random(40)
    if ties:
        scores = np.round(scores, 1)
    groups = rng.integers(0, 2, 40)
    member = np.stack([groups == 0, groups == 1]).astype(float)
    pull = np.zeros(40)
    add_own(np.array([[0, 1]]), 1.5, member, scores, np.full(40, 0.5), 40, pull)
    slopes = Pair(scores[groups == 0], scores[groups == 1], EnergyKernel(), tie=1e-6).slopes(biased=True)
    expected = np.zeros(40)
    for group in (0, 1):
        expected[groups == group] = 1.5 * 40 * 0.5 * slopes[group]
    assert np.allclose(pull, expected, atol=1e-12)


def test_a_minibatch_of_one_group_has_no_own_penalty() -> None:
    pull = np.zeros(3)
    add_own(np.array([[0, 1]]), 1.0, np.array([[1.0] * 3, [0.0] * 3]), np.array([0.1, 0.5, 0.9]), np.ones(3), 3, pull)
    assert not pull.any()


def penalty(kernel: str, groups: int, noise: ScoreNoise | None, correction: str = "none") -> TrackedPenalty:
    names = tuple(str(g) for g in range(groups))
    schema = Schema(("x",), "binary", "y", (0.0, 1.0), (SensitiveAttribute("group", names),))
    cells = Cells.of(notion_by_name("statistical_parity", schema), schema)
    rng = np.random.default_rng(groups)
    scores = tuple(rng.random(30 + 5 * g) for g in range(groups))
    weights = tuple(np.full(s.size, 1 / s.size) for s in scores)
    noisy = None if noise is None else NoisyScores(noise, correction, (-0.2, *[0.1] * (groups - 1)))  # type: ignore[arg-type]
    shared = SharedScores(kernel, 2.0, scores, weights, np.full(groups, 50.0), 50.0 * groups, (0.0, 1.0), noisy)
    return TrackedPenalty(shared, cells)


@pytest.mark.parametrize("groups", [2, 3])
@pytest.mark.parametrize(
    ("kernel", "mechanism", "correction"),
    [
        ("energy", None, "none"),
        ("energy", "gaussian", "none"),
        ("gaussian:0.4", None, "none"),
        ("gaussian:0.4", "gaussian", "none"),
        ("gaussian:0.4", "gaussian", "deconvolve"),
        ("gaussian:0.4", "laplace", "deconvolve"),
        ("energy", "laplace", "none"),
        ("laplace:0.3", None, "none"),
        ("laplace:0.3", "laplace", "none"),
        ("laplace:0.3", "gaussian", "none"),
        ("matern32:0.3", None, "none"),
        ("matern52:0.3", "laplace", "deconvolve"),
        ("rq:0.3:2", "laplace", "none"),
    ],
)
def test_tracked_penalties_have_the_slopes_of_their_kernels(
    groups: int, kernel: str, mechanism: str | None, correction: str
) -> None:
    noise = None if mechanism is None else ScoreNoise(mechanism, 0.2)  # type: ignore[arg-type]
    tracked = [penalty(kernel, groups, noise, correction) for _ in range(2)]
    assert all(can_be_packed(p) for p in tracked)
    rng = np.random.default_rng(9)
    z = np.concatenate([rng.random(50), tracked[0].shared.scores[0][:5], [0.0, 1.0]])  # at samples, too
    member = np.eye(groups)[rng.integers(0, groups, z.size)].T.copy()
    pull = np.zeros(z.size)
    add_tracked(packed_witness(tracked, groups, F64), 1, member, z, np.full(z.size, 0.25), z.size, pull)
    expected = 0.25 * tracked[1].derivative(z, tracked[1].coefficients(member.T.astype(bool)))
    assert np.allclose(pull, expected, rtol=1e-9, atol=1e-9)


def test_a_table_that_does_not_cover_all_scores_is_left_to_others() -> None:
    tracked = penalty("gaussian:0.4", 2, None)
    assert can_be_packed(tracked)
    assert not can_be_packed(TrackedPenalty(replace(tracked.shared, domain=None), tracked.cells))
    assert can_be_packed(TrackedPenalty(replace(penalty("laplace:0.3", 2, None).shared, domain=None), tracked.cells))
