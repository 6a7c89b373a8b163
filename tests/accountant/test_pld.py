"""PLD against dp-accounting's own accountant, closed forms and RDP; and how disagreement is handled."""

from __future__ import annotations

import math
from collections.abc import Iterator

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from scipy.stats import norm

import accountant
from accountant import bounds, pld
from accountant.bounds import BoundsDisagree, Spent, delta_of, spent
from accountant.errors import InputError
from accountant.events import (
    Adjacency,
    Composed,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    FixedSizeSampled,
    Gaussian,
    Laplace,
    Neighbouring,
    Nothing,
    NotPrivate,
    PoissonSampled,
    Repeated,
    Unit,
)
from accountant.interop import from_dp_event
from accountant.pld import pld_delta, pld_epsilon
from accountant.pld_profiles import amplified_curve, gaussian_delta, poisson_curves, unsampled_curve

ADD, REPLACE = Adjacency.ADD_OR_REMOVE, Adjacency.REPLACE_ONE
RELATION = {ADD: dp.NeighboringRelation.ADD_OR_REMOVE_ONE, REPLACE: dp.NeighboringRelation.REPLACE_ONE}

LAPLACE, GAUSSIAN = dp.LaplaceDpEvent(1.4), dp.GaussianDpEvent(1.4)
PLANS = [
    (ADD, dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.1, GAUSSIAN), 120)),
    (REPLACE, dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.1, GAUSSIAN), 120)),
    (ADD, dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.05, LAPLACE), 60)),
    (ADD, dp.ComposedDpEvent([GAUSSIAN, dp.SelfComposedDpEvent(LAPLACE, 3), dp.GaussianDpEvent(3.0)])),
    (REPLACE, dp.SelfComposedDpEvent(GAUSSIAN, 3)),
    (ADD, dp.SelfComposedDpEvent(dp.dp_event.DiscreteLaplaceDpEvent(0.3, 2), 5)),
]


@pytest.mark.parametrize(("adjacency", "plan"), PLANS)
def test_same_as_dp_accounting(adjacency: Adjacency, plan: dp.DpEvent) -> None:
    theirs = PLDAccountant(RELATION[adjacency]).compose(plan)
    ours = from_dp_event(plan, adjacency)
    assert pld_epsilon(ours, 1e-5) == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-6)
    assert pld_delta(ours, 2.0) == pytest.approx(theirs.get_delta(2.0), rel=1e-6)


def test_the_price_of_public_counts() -> None:
    """DP-SGD at q 0.1, z 1.4, 120 steps, δ 1e-5: 4.31 under add-or-remove, 7.45 under replace-one."""
    step = PoissonSampled(0.1, Gaussian(1.4))
    replaced = PoissonSampled(0.1, Gaussian(1.4, 2.0, REPLACE), presence_sensitivity=1.0)
    assert accountant.epsilon(Repeated(step, 120), 1e-5, "pld") == pytest.approx(4.31, abs=0.005)
    assert accountant.epsilon(Repeated(replaced, 120), 1e-5, "pld") == pytest.approx(7.45, abs=0.005)


def test_known_clash_of_conventions_in_dp_accounting() -> None:
    """Ten Gaussian releases, multiplier 2, replace-one: its RDP takes 2 per replacement, its PLD 2 per norm.

    Here there is one convention, sensitivity 2 C for a replacement, and two upper bounds under it.
    """
    plan = dp.SelfComposedDpEvent(dp.GaussianDpEvent(2.0), 10)
    relation = dp.NeighboringRelation.REPLACE_ONE
    assert dp.rdp.RdpAccountant(neighboring_relation=relation).compose(plan).get_epsilon(1e-5) == pytest.approx(
        8.08, abs=0.005
    )
    assert PLDAccountant(relation).compose(plan).get_epsilon(1e-5) == pytest.approx(17.86, abs=0.005)

    ours = from_dp_event(plan, REPLACE)
    assert ours == Repeated(Gaussian(2.0, 2.0, REPLACE), 10)
    by_pld, by_rdp = spent(ours, 1e-5, "pld"), spent(ours, 1e-5, "rdp")
    multiplier = 1 / math.sqrt(10)
    exact = norm.cdf(0.5 / multiplier - by_pld.epsilon * multiplier) - math.exp(by_pld.epsilon) * norm.cdf(
        -0.5 / multiplier - by_pld.epsilon * multiplier
    )
    assert exact == pytest.approx(1e-5, rel=1e-3)
    assert by_pld.epsilon == pytest.approx(17.86, abs=0.005)
    assert by_pld.epsilon <= by_rdp.epsilon == pytest.approx(19.05, abs=0.01)
    assert "replace one record" in str(by_pld)


@pytest.mark.parametrize(
    "event",
    [
        PoissonSampled(0.1, DiscreteGaussian(14.0, 10)),
        PoissonSampled(0.1, DiscreteLaplace(14.0, 10)),
        PoissonSampled(0.1, Laplace(1.4, 2.0, REPLACE), 1.0),
        PoissonSampled(0.1, DiscreteGaussian(14.0, 20, REPLACE), 10),
        PoissonSampled(0.1, DiscreteLaplace(14.0, 20, REPLACE), 10),
        PoissonSampled(0.9, Gaussian(1.4, 1.0, REPLACE)),
        PoissonSampled(0.5, DiscreteLaplace(14.0, 10, REPLACE), 7),
        FixedSizeSampled(10, 100, Gaussian(1.4, 1.0, REPLACE)),
        FixedSizeSampled(10, 100, Laplace(1.4, 1.0, REPLACE)),
        FixedSizeSampled(10, 100, DiscreteGaussian(14.0, 10, REPLACE)),
        FixedSizeSampled(10, 100, DiscreteLaplace(14.0, 10, REPLACE)),
        DiscreteGaussian(1.4, 1),
        DiscreteLaplace(1.4, 1),
    ],
)
def test_pld_is_just_below_rdp_for_every_kind(event: Event) -> None:
    plan = Repeated(event, 40)
    by_rdp, by_pld = spent(plan, 1e-5, "rdp").epsilon, spent(plan, 1e-5, "pld").epsilon
    assert 0.75 * by_rdp < by_pld <= by_rdp


def hockey_stick(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


@pytest.mark.parametrize("sampling", ["removal", "addition", "replace", "fixed"])
@pytest.mark.parametrize("kind", [DiscreteGaussian, DiscreteLaplace])
def test_noise_on_a_grid_by_convolution(kind: type[DiscreteGaussian], sampling: str) -> None:
    """Two releases by brute force on the product of two grids, against the composed distribution."""
    rate, scale, steps = 0.3, 2.0, 2
    k = np.arange(-60, 61)
    noise = np.exp(-(k**2) / (2 * scale**2)) if kind is DiscreteGaussian else np.exp(-np.abs(k) / scale)
    noise /= noise.sum()

    def mixed(shift: int) -> np.ndarray:
        return (1 - rate) * noise + rate * np.roll(noise, shift)

    event: Event = PoissonSampled(rate, kind(scale, steps))
    p, q = (mixed(steps), noise) if sampling == "removal" else (noise, mixed(steps))
    if sampling == "replace":
        event = PoissonSampled(rate, kind(scale, 2 * steps, REPLACE), steps)
        p, q = mixed(steps), mixed(-steps)
    if sampling == "fixed":
        event = FixedSizeSampled(3, 10, kind(scale, steps, REPLACE))
        p, q = mixed(steps), noise
    for epsilon in (0.0, 0.2, 0.5):
        exact = hockey_stick(np.outer(p, p), np.outer(q, q), epsilon)
        if sampling == "removal":  # the distribution gives the worse of its two directions
            exact = max(exact, hockey_stick(np.outer(q, q), np.outer(p, p), epsilon))
        found = pld_delta(Repeated(event, 2), epsilon)
        assert exact * (1 - 1e-9) <= found + 1e-12
        if sampling in ("removal", "replace"):
            assert found <= exact * (1 + 1e-3) + 1e-9


def test_curves_of_sampled_noise_are_the_hockey_stick_divergences() -> None:
    """By quadrature over the noise; both directions, and sampling without replacement above and below ε = 0."""
    rate, scale = 0.2, 0.9
    x = np.linspace(-30, 30, 600_001)
    for event, density in (
        (Gaussian(scale), lambda v: norm.pdf(v, scale=scale)),
        (Laplace(scale), lambda v: np.exp(-np.abs(v) / scale) / (2 * scale)),
    ):
        base, shifted = density(x), density(x - 1)
        mixed = (1 - rate) * base + rate * shifted
        removal, addition = poisson_curves(rate, unsampled_curve(event))
        fixed = amplified_curve(rate, unsampled_curve(event))
        for epsilon in (-1.0, -0.1, 0.0, 0.15, 0.22, 0.5, 1.2):
            at = np.array([epsilon])
            remove = np.trapezoid(np.maximum(mixed - math.exp(epsilon) * base, 0), x)
            add = np.trapezoid(np.maximum(base - math.exp(epsilon) * mixed, 0), x)
            assert removal.delta(at)[0] == pytest.approx(remove, rel=1e-4, abs=1e-8)
            assert addition.delta(at)[0] == pytest.approx(add, rel=1e-4, abs=1e-8)
            assert fixed.delta(at)[0] == pytest.approx(remove if epsilon >= 0 else add, rel=1e-4, abs=1e-8)


def test_gaussian_delta_in_high_precision() -> None:
    import mpmath as mp

    for z in (0.2, 1.0, 30.0):
        for epsilon in (0.0, 0.01, 1.0, 12.0):
            with mp.workdps(60):
                half, e, s = 1 / (2 * mp.mpf(z)), mp.mpf(epsilon), mp.mpf(z)
                exact = mp.ncdf(half - e * s) - mp.exp(e) * mp.ncdf(-half - e * s)
            found = float(gaussian_delta(np.array([epsilon]), z)[0])
            if exact > 1e-250:
                assert found == pytest.approx(float(exact), rel=1e-9)


@pytest.mark.parametrize(("multiplier", "count"), [(10.0, 100), (30.0, 1000), (3.0, 10)])
def test_rounding_of_the_composition_goes_to_the_private_side(
    monkeypatch: pytest.MonkeyPatch, multiplier: float, count: int
) -> None:
    """Gaussian releases composed one by one, whose exact answer is known, down to the δ that rounding hides."""
    event = Repeated(Gaussian(multiplier), count)
    composed = pld._of_gaussian(multiplier, pld.INTERVAL).self_compose(count)
    monkeypatch.setattr(pld, "compose", lambda *_: composed)  # would merge them first
    hidden = pld.rounding(event)
    assert hidden == count * 2.0**-52
    for delta in (1e-3, 1e-5, 1e-8, 1e-11, 2 * hidden):
        exact = float(gaussian_delta(np.array([pld_epsilon(event, delta)]), multiplier / math.sqrt(count))[0])
        assert exact <= delta
        if delta >= 1e-11:
            assert exact >= 0.99 * (delta - hidden)
        assert pld_delta(event, pld_epsilon(event, delta)) >= exact
    with pytest.raises(pld.TooFine, match=r"delta must be above .*, the rounding of so many releases"):
        pld_epsilon(event, hidden)


def test_not_private_and_nothing() -> None:
    assert accountant.epsilon([Gaussian(1.0), NotPrivate()], 1e-5, "pld") == math.inf
    assert accountant.epsilon([], 1e-5, "pld") == 0.0
    assert accountant.epsilon(Composed((Nothing(),)), 1e-5, "pld") == 0.0
    assert pld_delta(NotPrivate(), 1.0) == 1.0
    assert delta_of(NotPrivate(), 1.0, "pld") == 1.0


@pytest.fixture
def nothing_remembered() -> Iterator[None]:
    """No answer of another test is used, and none of a broken PLD is left to others."""
    bounds.spent_by_pld.cache_clear()
    yield
    bounds.spent_by_pld.cache_clear()


@pytest.mark.usefixtures("nothing_remembered")
def test_rdp_below_pld_refines_the_grid_tenfold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four thousand nearly free releases: at 1e-4 the grid is as coarse as the losses themselves."""
    seen: list[float] = []
    real = pld.pld_epsilon

    def watched(event: Event, delta: float, interval: float = pld.INTERVAL) -> float:
        seen.append(interval)
        return real(event, delta, interval)

    monkeypatch.setattr(pld, "pld_epsilon", watched)
    plan = Repeated(Laplace(20_000.0), 4000)
    found = bounds.spent_by_pld(plan, 1e-5)
    assert seen[:2] == [1e-4, 1e-5]
    assert found.epsilon <= bounds.spent_by_rdp(plan, 1e-5).epsilon * 1.01
    assert found.interval in seen


@pytest.mark.usefixtures("nothing_remembered")
def test_pld_that_stays_above_rdp_is_not_given_out(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[float] = []

    def broken(event: Event, delta: float, interval: float = pld.INTERVAL) -> float:
        calls.append(interval)
        return 100.0

    monkeypatch.setattr(pld, "pld_epsilon", broken)
    with pytest.raises(BoundsDisagree, match="the RDP bound holds"):
        spent(Gaussian(1.0), 1e-5, "pld")
    assert calls == pytest.approx([1e-4, 1e-5, 1e-6])

    monkeypatch.setattr(pld, "pld_epsilon", lambda *_: spent(Gaussian(1.0), 1e-5).epsilon * 1.005)
    assert spent(Gaussian(1.0), 1e-5, "pld").method == "pld"  # within 1%: given out


def test_too_little_noise_for_a_grid_is_refused_with_a_remedy() -> None:
    with pytest.raises(pld.TooFine, match="use method='rdp'"):
        pld_epsilon(Gaussian(0.001), 1e-5)
    with pytest.raises(InputError, match="Count in coarser steps"):
        pld_epsilon(PoissonSampled(0.1, DiscreteGaussian(1e6, 10**6)), 1e-5)


def test_the_answer_states_its_convention() -> None:
    found = spent(Gaussian(2.0, unit=Unit.CLIENT), 1e-6)
    assert isinstance(found, Spent)
    assert found.neighbouring == Neighbouring(ADD, Unit.CLIENT)
    assert found.order is not None
    assert str(found).startswith("ε = ")
    assert "add or remove one client" in str(found)
    assert "at δ = 1e-06" in str(found)
    with pytest.raises(InputError, match="method must be one of"):
        spent(Gaussian(2.0), 1e-6, "gdp")  # type: ignore[arg-type]  # wrong on purpose
