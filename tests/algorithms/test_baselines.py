"""The baselines' own formulas: identities from their papers, limits in which they are FedAvg."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

import privfair
from privfair.datasets.records import ClientData
from privfair.federated.algorithms.baselines import (
    conditional_weights,
    fairfed_weights,
    gaps,
    parity_weights,
    project_to_simplex,
)
from tests.end_to_end.federations import toy

SMALL = {"data": {"clients": 4, "records": 60}, "federation": {"rounds": 3, "local_epochs": 2, "batch_size": 20}}
VECTORS = st.lists(st.floats(-3, 3), min_size=1, max_size=8).map(np.array)


def final(**sections: dict[str, object]) -> np.ndarray:
    """The trained parameters of a small run."""
    tree = {name: dict(table) for name, table in SMALL.items()}
    for name, table in sections.items():
        tree[name] = {**tree.get(name, {}), **table}
    return np.concatenate([p.detach().numpy().ravel() for p in privfair.train(tree).model.module.parameters()])


@given(v=VECTORS)
@settings(max_examples=60, deadline=None)
def test_projection_onto_the_simplex(v: np.ndarray) -> None:
    p = project_to_simplex(v)
    assert p.sum() == pytest.approx(1)
    assert p.min() >= 0
    np.testing.assert_allclose(project_to_simplex(p), p, atol=1e-12)
    np.testing.assert_allclose(project_to_simplex(v + 7.3), p, atol=1e-9)  # only differences count
    # optimality: moving any mass from one entry to another does not come closer
    gradient = p - v
    assert gradient[p > 1e-12].max() <= gradient.min() + 1e-9


@pytest.mark.parametrize("size", [1e9, 1e300])
def test_projection_of_large_entries(size: float) -> None:
    """Beside 1e300 a 1 is lost to rounding: what is far above the rest has all, and equal entries share."""
    np.testing.assert_array_equal(project_to_simplex(np.array([1.0, size, -size])), [0.0, 1.0, 0.0])
    np.testing.assert_array_equal(project_to_simplex(np.array([size, 0.0, size])), [0.5, 0.0, 0.5])


def test_projection_against_an_optimiser() -> None:
    v = np.array([0.9, 0.4, -0.2, 0.6])
    answer = minimize(
        lambda p: np.sum((p - v) ** 2), np.full(4, 0.25), bounds=[(0, 1)] * 4,
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1}, options={"ftol": 1e-14},
    )  # fmt: skip
    np.testing.assert_allclose(project_to_simplex(v), answer.x, atol=1e-6)


def test_agnostic_with_a_tiny_step_is_fedavg() -> None:
    tiny = final(federation={"method": "agnostic", "agnostic_step": 1e-12})
    np.testing.assert_allclose(tiny, final(federation={"method": "fedavg"}), atol=1e-6)
    assert not np.allclose(final(federation={"method": "agnostic", "agnostic_step": 1.0}), tiny, atol=1e-4)


def test_fairfed_with_beta_0_is_local_fairness() -> None:
    same = final(federation={"method": "fairfed", "fairfed_beta": 0.0})
    np.testing.assert_allclose(same, final(federation={"method": "local_fairness"}), atol=1e-6)


def test_fairfed_does_not_hear_clients_without_records() -> None:
    """One without records would count as as wrong as can be, and pull the mean that others are compared with."""
    base = toy()
    empty = base.clients[0].train.take([])
    more = replace(base, clients=(*base.clients, ClientData("nobody", empty, empty)))
    work = {"method": "fairfed", "fairfed_beta": 0.5, "rounds": 2}
    same, other = (privfair.train(dataset=data, federation=work).rows for data in (base, more))
    assert [row["train_loss"] for row in same] == pytest.approx([row["train_loss"] for row in other], abs=1e-7)


def test_fedfb_with_a_tiny_step_is_fedavg() -> None:
    tiny = final(federation={"method": "fedfb", "fedfb_step": 1e-12})
    np.testing.assert_allclose(tiny, final(federation={"method": "fedavg"}), atol=1e-6)


def test_tracking_without_strength_is_fedavg() -> None:
    nothing = final(fairness={"lambda": 0.0})
    np.testing.assert_allclose(nothing, final(federation={"method": "fedavg"}), atol=1e-6)


def test_fairfed_moves_weight_from_the_odd_client() -> None:
    """Client 2 favours group 1 where the others favour group 0; it is furthest from the global gap and loses weight."""
    usual = np.array([[[5, 5], [5, 35]], [[5, 5], [30, 10]]])  # (group, label, decision)
    odd = usual[::-1]
    confusion = np.stack([usual, usual, odd]).astype(float)
    moved = fairfed_weights(np.full(3, 1 / 3), confusion, 0.2, (None,))
    assert moved[2] < 1 / 3 < moved[0]
    assert moved.sum() == pytest.approx(1)  # equation 6 keeps the sum while nothing is cut


def test_fairfed_uses_accuracy_where_a_client_lacks_a_group() -> None:
    full = np.array([[[5, 5], [5, 35]], [[5, 5], [30, 10]]], dtype=float)
    lacking = full.copy()
    lacking[1] = 0
    assert np.isnan(gaps(lacking, (None,))).all()
    moved = fairfed_weights(np.array([0.5, 0.5]), np.stack([full, lacking]), 0.1, (None,))
    assert np.isfinite(moved).all()


def test_fairfed_global_gap_is_the_pooled_one() -> None:
    rng = np.random.default_rng(0)
    confusion = rng.integers(0, 30, size=(5, 2, 2, 2)).astype(float)
    pooled = confusion.sum(axis=0)
    rates = pooled[:, :, 1].sum(axis=1) / pooled.sum(axis=(1, 2))
    assert gaps(pooled, (None,))[0] == pytest.approx(rates[0] - rates[1])


def test_fedfb_signal_with_errors_as_losses_is_the_parity_gap() -> None:
    """With the 0-1 loss f_a = P(ŷ=1 | a) − P(ŷ=1 | 0); the weights then move by step·f_a/p_a."""
    rng = np.random.default_rng(1)
    confusion = rng.integers(5, 40, size=(3, 2, 2)).astype(float)  # (group, label, decision)
    sizes = confusion.sum(axis=2)
    errors = np.stack([confusion[:, 0, 1], confusion[:, 1, 0]], axis=1)
    n_a = sizes.sum(axis=1)
    rate = confusion[:, :, 1].sum(axis=1) / n_a
    moved = parity_weights(np.ones((3, 2)), sizes, errors, 0.01)
    shares = n_a / n_a.sum()
    np.testing.assert_allclose((moved[1:, 0] - 1) * shares[1:], 0.01 * (rate[1:] - rate[0]), atol=1e-12)
    np.testing.assert_allclose((moved[0, 0] - 1) * shares[0], -0.01 * (rate[1:] - rate[0]).sum(), atol=1e-12)
    np.testing.assert_allclose(moved.sum(axis=1), 2)


@given(step=st.floats(0, 50), seed=st.integers(0, 100))
@settings(max_examples=40, deadline=None)
def test_fedfb_weights_stay_in_their_range(step: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes, losses = rng.integers(1, 50, size=(3, 2)).astype(float), rng.uniform(0, 40, size=(3, 2))
    parity = parity_weights(np.ones((3, 2)), sizes, losses, step)
    assert parity.min() >= 0
    assert parity.max() <= 2 + 1e-12
    odds = conditional_weights(np.ones((3, 2)), sizes, losses, step, (0, 1))
    assert odds.min() >= 0
    np.testing.assert_allclose((odds * sizes).sum(axis=0), sizes.sum(axis=0))  # P(Y = y) is kept


def test_fedfb_gives_more_weight_to_the_group_with_the_larger_loss() -> None:
    sizes, losses = np.full((2, 2), 10.0), np.array([[5.0, 2.0], [5.0, 8.0]])
    moved = conditional_weights(np.ones((2, 2)), sizes, losses, 0.1, (1,))
    assert moved[1, 1] > 1 > moved[0, 1]
    np.testing.assert_allclose(moved[:, 0], 1)
