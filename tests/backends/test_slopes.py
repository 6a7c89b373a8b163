"""Derivatives of kernel sums, and the rule for scores that are the same but for rounding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from privfair.datasets.records import Schema, SensitiveAttribute
from privfair.engines.batched.objectives import EnergySums, OwnEnergy, Step, padded
from privfair.fairness.notions import STATISTICAL_PARITY, Cells
from privfair.fairness.tracking import SAME_SCORE as TIE
from privfair.kernels.families import EnergyKernel
from privfair.kernels.witness import Embedding


@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 20))
def test_energy_sums_are_the_plain_sums(seed: int, samples: int, points: int) -> None:
    rng = np.random.default_rng(seed)
    y, w = np.round(rng.random((3, samples)), 1), rng.normal(size=(3, samples))  # rounded: equal samples, ties with z
    z = np.round(rng.random((3, points)), 1)
    plain = -0.5 * np.einsum("jm,jbm->jb", w, np.sign(z[:, :, None] - y[:, None, :]))
    found = EnergySums(torch.from_numpy(y), torch.from_numpy(w)).at(torch.from_numpy(z))
    assert np.allclose(found.numpy(), plain, atol=1e-12)


@pytest.mark.parametrize("nudge", [0.0, 1e-16, -1e-16, 1e-9, -1e-9, 0.4 * TIE, -0.4 * TIE])
@pytest.mark.parametrize("at", [0.5, 3e-5, 7.25])
def test_both_engines_take_scores_that_differ_by_rounding_for_one(at: float, nudge: float) -> None:
    y, w = np.array([at, at * (1 + 1e-16), 0.9, 0.1]), np.array([0.5, 0.25, -0.5, 0.25])
    z = np.array([at * (1 + nudge)])
    expected = -0.5 * float(w[2:] @ np.sign(z[0] - y[2:]))
    sequential = Embedding(EnergyKernel(), y, w, tie=TIE).evaluate(z, 1)
    stacked = EnergySums(torch.from_numpy(y)[None], torch.from_numpy(w)[None]).at(torch.from_numpy(z)[None])
    assert float(sequential[0]) == pytest.approx(expected, abs=1e-12)
    assert float(stacked[0, 0]) == pytest.approx(expected, abs=1e-12)


def test_scores_further_apart_are_two() -> None:
    sums = EnergySums(torch.tensor([[0.5]], dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64))
    z = torch.tensor([[0.5 - 3 * TIE, 0.5, 0.5 + 3 * TIE]], dtype=torch.float64)
    assert sums.at(z).tolist() == [[0.5, 0.0, -0.5]]
    embedding = Embedding(EnergyKernel(), np.array([0.5]), np.array([1.0]), tie=TIE)
    assert embedding.evaluate(z[0].numpy(), 1).tolist() == [0.5, 0.0, -0.5]


def test_samples_that_do_not_count_change_nothing() -> None:
    rows = padded([np.array([0.2, 0.7]), np.array([0.4])], torch.float64)
    assert rows.tolist() == [[0.2, 0.7], [0.4, 0.0]]
    weights = padded([np.array([0.5, 0.5]), np.array([1.0])], torch.float64)
    z = torch.tensor([[0.3], [0.3]], dtype=torch.float64)
    assert EnergySums(rows, weights).at(z).tolist() == [[0.0], [0.5]]


def test_the_own_penalty_is_the_gradient_of_mmd2() -> None:
    schema = Schema(("a",), "binary", "y", (0.0, 1.0), (SensitiveAttribute("s", ("0", "1", "2")),))
    cells = Cells.of(STATISTICAL_PARITY, schema)
    rng = np.random.default_rng(0)
    scores = torch.from_numpy(rng.random((2, 9)))
    groups = torch.from_numpy(rng.integers(3, size=(2, 9)))
    member = torch.nn.functional.one_hot(groups, 3).double()
    sizes = torch.tensor([9, 6])
    step = Step(torch.zeros(2, 1), torch.zeros(2, 9, dtype=torch.int64), scores, member, sizes)
    found = OwnEnergy([1.0, 0.5], cells).slopes(step)
    for job, (size, strength) in enumerate(((9, 1.0), (6, 0.5))):
        z = scores[job, :size].clone().requires_grad_()
        total = torch.zeros((), dtype=torch.float64)
        for a in range(3):
            for b in range(a + 1, 3):
                x, y = z[groups[job, :size] == a], z[groups[job, :size] == b]
                if len(x) and len(y):
                    total = total + _energy_mmd2(x, y)
        (gradient,) = torch.autograd.grad(strength * total, z)
        assert torch.allclose(found[job, :size], size * gradient, atol=1e-12)
        assert not found[job, size:].any()


def _energy_mmd2(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    def mean(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return -(a[:, None] - b[None, :]).abs().mean() / 2

    return mean(x, x) + mean(y, y) - 2 * mean(x, y)
