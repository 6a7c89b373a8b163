"""RDP against independent oracles: mpmath integration and summation, Opacus, dp-accounting, and brute force."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import mpmath as mp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

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
    Nothing,
    NotPrivate,
    PoissonSampled,
    Repeated,
)
from accountant.rdp import DEFAULT_ORDERS, Pair, log_moment, rdp

ADD, REPLACE = Adjacency.ADD_OR_REMOVE, Adjacency.REPLACE_ONE
AGREE = 1e-6

Density = Callable[[mp.mpf], mp.mpf]


def at(event: Event, order: float) -> float:
    return float(rdp(event, (order,))[0])


def is_tight_upper_bound(found: float, exact: mp.mpf) -> bool:
    """At least the exact value, and within one millionth of it."""
    return bool(exact <= found <= exact * (1 + AGREE))


# --- densities and masses, in units where the shift is as given -------------------------------------


def gaussian(scale: float, shift: float = 0.0) -> Density:
    return lambda x: mp.exp(-((x - shift) ** 2) / (2 * mp.mpf(scale) ** 2)) / (scale * mp.sqrt(2 * mp.pi))


def laplace(scale: float, shift: float = 0.0) -> Density:
    return lambda x: mp.exp(-abs(x - shift) / mp.mpf(scale)) / (2 * mp.mpf(scale))


def mixture(rate: float, first: Density, second: Density) -> Density:
    return lambda x: (1 - mp.mpf(rate)) * first(x) + mp.mpf(rate) * second(x)


def renyi(p: Density, q: Density, order: float, cuts: list[float]) -> mp.mpf:
    """D_α(P ‖ Q) by quadrature between the cuts."""
    with mp.workdps(25):
        a = mp.mpf(order)
        moment = mp.quad(lambda x: p(x) ** a * q(x) ** (1 - a), [mp.mpf(c) for c in cuts])
        return mp.log(moment) / (a - 1)


def renyi_sum(p: Density, q: Density, order: float, points: range) -> mp.mpf:
    """D_α(P ‖ Q) of two distributions on integers, normalised by their own sums."""
    with mp.workdps(30):
        a = mp.mpf(order)
        ps, qs = [p(mp.mpf(k)) for k in points], [q(mp.mpf(k)) for k in points]
        moment = mp.fsum(x**a * y ** (1 - a) for x, y in zip(ps, qs, strict=True))
        return mp.log(moment / mp.fsum(qs) * (mp.fsum(qs) / mp.fsum(ps)) ** a) / (a - 1)


def cuts_for(scale: float, order: float, reach: float) -> list[float]:
    inner = np.linspace(-1.0, reach * order + 1.0, 12)
    return sorted({-45 * scale - 1, -12 * scale, 0.0, *inner.tolist(), reach * order + 45 * scale + 1})


# --- continuous noise -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "scale", "order"),
    [(0.01, 1.1, 1.1), (0.01, 1.1, 7.5), (0.3, 0.6, 3.7), (1e-5, 1.0, 2.0), (0.5, 6.0, 9.0), (0.97, 0.8, 1.5)],
)
def test_poisson_gaussian_is_exact_and_the_larger_of_both_directions(rate: float, scale: float, order: float) -> None:
    base = gaussian(scale)
    mixed = mixture(rate, base, gaussian(scale, 1.0))
    cuts = cuts_for(scale, order, 1.0)
    found = at(PoissonSampled(rate, Gaussian(scale)), order)
    assert is_tight_upper_bound(found, renyi(mixed, base, order, cuts))
    assert renyi(base, mixed, order, [-c for c in reversed(cuts)]) <= found


@pytest.mark.parametrize(("rate", "scale"), [(0.02, 0.7), (0.4, 2.0), (1e-4, 0.2), (0.99, 1.0)])
@pytest.mark.parametrize("order", [1.1, 3.7, 33.0])
def test_poisson_laplace_is_exact_and_the_larger_of_both_directions(rate: float, scale: float, order: float) -> None:
    base = laplace(scale)
    mixed = mixture(rate, base, laplace(scale, 1.0))
    cuts = [-60 * scale, -5 * scale, 0.0, 0.25, 0.5, 0.75, 1.0, 1 + 5 * scale, 1 + 60 * scale]
    found = at(PoissonSampled(rate, Laplace(scale)), order)
    assert is_tight_upper_bound(found, renyi(mixed, base, order, cuts))
    assert renyi(base, mixed, order, cuts) <= found


@pytest.mark.parametrize("order", [1.1, 3.7, 33.0])
@pytest.mark.parametrize("scale", [0.1, 1.3, 40.0])
def test_laplace_is_exact(scale: float, order: float) -> None:
    cuts = [-60 * scale, -5 * scale, 0.0, 0.5, 1.0, 1 + 5 * scale, 1 + 60 * scale]
    assert is_tight_upper_bound(at(Laplace(scale), order), renyi(laplace(scale, 1.0), laplace(scale), order, cuts))


@pytest.mark.parametrize(("rate", "scale", "order"), [(0.1, 1.4, 1.5), (0.1, 1.4, 6.0), (0.6, 0.9, 3.3)])
def test_poisson_gaussian_under_replace_one_is_the_divergence_of_opposite_mixtures(
    rate: float, scale: float, order: float
) -> None:
    plus = mixture(rate, gaussian(scale), gaussian(scale, 1.0))
    minus = mixture(rate, gaussian(scale), gaussian(scale, -1.0))
    exact = renyi(plus, minus, order, cuts_for(scale, order, 2.0))
    assert is_tight_upper_bound(at(PoissonSampled(rate, Gaussian(scale, 2.0, REPLACE), 1.0), order), exact)


@pytest.mark.parametrize("order", [1.5, 8.0])
def test_poisson_laplace_under_replace_one_is_the_divergence_of_opposite_mixtures(order: float) -> None:
    plus = mixture(0.2, laplace(0.8), laplace(0.8, 1.0))
    minus = mixture(0.2, laplace(0.8), laplace(0.8, -1.0))
    exact = renyi(plus, minus, order, [-50, -1, -0.5, 0, 0.5, 1, 50])
    assert is_tight_upper_bound(at(PoissonSampled(0.2, Laplace(0.8, 2.0, REPLACE), 1.0), order), exact)


def test_any_replacement_within_the_clipping_norm_costs_at_most_the_opposite_pair() -> None:
    """(1−q)N(0) + qN(v) from (1−q)N(0) + qN(v') in the plane, for v, v' of norm at most 1, by quadrature."""
    rate, scale, order = 0.3, 0.8, 2.5
    bound = at(PoissonSampled(rate, Gaussian(scale, 2.0, REPLACE), 1.0), order)
    x = np.linspace(-9.0, 9.0, 901)
    grid_x, grid_y = np.meshgrid(x, x)

    def mixed(v: complex) -> np.ndarray:
        def one(w: complex) -> np.ndarray:
            return np.exp(-((grid_x - w.real) ** 2 + (grid_y - w.imag) ** 2) / (2 * scale**2))

        return ((1 - rate) * one(0j) + rate * one(v)) / (2 * np.pi * scale**2)

    rng = np.random.default_rng(7)
    cases = [(1 + 0j, -1 + 0j), (1 + 0j, 0j), (0j, 1 + 0j)]
    for _ in range(12):
        radius, angle = rng.uniform(0, 1, 2) ** 0.5, rng.uniform(0, 2 * np.pi, 2)
        cases.append((complex(radius[0] * np.exp(1j * angle[0])), complex(radius[1] * np.exp(1j * angle[1]))))
    found = []
    for v, w in cases:
        moment = np.sum(mixed(v) ** order * mixed(w) ** (1 - order)) * (x[1] - x[0]) ** 2
        found.append(math.log(moment) / (order - 1))
    assert max(found) <= bound
    assert found[0] == pytest.approx(bound, rel=1e-6)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_values_of_one_sign_under_replace_one_cost_at_most_the_amplified_bound(rate: float) -> None:
    """Poisson sampling of v, v' in [0, 1]: presence moves as far as replacement, in one direction only."""
    scale, order = 0.7, 3.0
    bound = at(PoissonSampled(rate, Gaussian(scale, 1.0, REPLACE)), order)
    assert bound == at(PoissonSampled(rate, Gaussian(scale, 1.0, REPLACE), 0.8), order)
    x = np.linspace(-12.0, 15.0, 40_001)

    def mixed(v: float) -> np.ndarray:
        def one(w: float) -> np.ndarray:
            return np.exp(-((x - w) ** 2) / (2 * scale**2)) / (scale * math.sqrt(2 * math.pi))

        return (1 - rate) * one(0.0) + rate * one(v)

    worst = 0.0
    for v, w in itertools.permutations((0.0, 0.3, 0.5, 0.9, 1.0), 2):
        moment = np.trapezoid(mixed(v) ** order * mixed(w) ** (1 - order), x)
        worst = max(worst, math.log(moment) / (order - 1))
    assert 0.5 * bound < worst <= bound
    assert worst > at(PoissonSampled(rate, Gaussian(scale, 1.0, REPLACE), 0.5), order)  # not a sum around zero


# --- noise on a grid ------------------------------------------------------------------------------


@pytest.mark.parametrize(("rate", "scale", "steps"), [(0.05, 0.7, 1), (0.3, 2.5, 3), (1e-3, 14.0, 10)])
@pytest.mark.parametrize("order", [1.3, 5.5, 17.0])
def test_poisson_discrete_gaussian_is_the_sum_over_the_grid(
    rate: float, scale: float, steps: int, order: float
) -> None:
    width = int(45 * scale) + 2
    points = range(-width, int(order * steps) + width)
    base = gaussian(scale)
    mixed = mixture(rate, base, gaussian(scale, steps))
    found = at(PoissonSampled(rate, DiscreteGaussian(scale, steps)), order)
    exact = renyi_sum(mixed, base, order, points)
    assert is_tight_upper_bound(found, exact)
    assert renyi_sum(base, mixed, order, range(-int(order * steps) - width, width)) <= found


@pytest.mark.parametrize(("rate", "scale", "steps"), [(1.0, 0.9, 1), (0.05, 0.7, 2), (0.3, 12.0, 10)])
@pytest.mark.parametrize("order", [1.3, 5.5, 40.0])
def test_discrete_laplace_sampled_or_not_is_the_sum_over_the_grid(
    rate: float, scale: float, steps: int, order: float
) -> None:
    points = range(-int(80 * scale), steps + int(80 * scale))
    base = laplace(scale)
    mixed = mixture(rate, base, laplace(scale, steps))
    event = DiscreteLaplace(scale, steps) if rate == 1.0 else PoissonSampled(rate, DiscreteLaplace(scale, steps))
    assert is_tight_upper_bound(at(event, order), renyi_sum(mixed, base, order, points))
    assert renyi_sum(base, mixed, order, points) <= at(event, order)


@pytest.mark.parametrize("order", [1.3, 4.0, 9.0])
def test_replace_one_on_a_grid_is_the_sum_of_opposite_mixtures(order: float) -> None:
    for kind, density, scale in ((DiscreteGaussian, gaussian, 3.0), (DiscreteLaplace, laplace, 2.0)):
        plus = mixture(0.2, density(scale), density(scale, 2))
        minus = mixture(0.2, density(scale), density(scale, -2))
        points = range(-150, 150 + int(4 * order))
        event = PoissonSampled(0.2, kind(scale, 4, REPLACE), 2)
        assert is_tight_upper_bound(at(event, order), renyi_sum(plus, minus, order, points))


def test_unsampled_discrete_gaussian_is_at_most_its_bound_and_meets_it() -> None:
    for order in (1.5, 2.0, 7.0):
        exact = renyi_sum(gaussian(0.8, 1), gaussian(0.8), order, range(-60, 80))
        found = at(DiscreteGaussian(0.8, 1), order)
        assert found >= exact * (1 - mp.mpf(10) ** -12)
        if order.is_integer():
            assert found == pytest.approx(float(exact), rel=1e-9)


def test_a_fine_grid_is_thinned_without_changing_the_sum() -> None:
    """The step between nodes is several grid points here; the oracle sums all of them."""
    from accountant.rdp import gaussian_nodes

    steps, scale, rate, order = 40, 60.0, 0.2, 6.0
    nodes = gaussian_nodes(scale / steps, 16.0, 0.0, steps)
    assert nodes is not None
    spacing = (nodes.plus[1] - nodes.plus[0]) * (scale / steps) ** 2 * steps
    assert spacing > 2.5
    k = np.arange(-int(40 * scale), int(order * steps + 40 * scale))
    base = np.exp(-(k**2) / (2 * scale**2))
    mixed = (1 - rate) + rate * np.exp((2 * k * steps - steps**2) / (2 * scale**2))
    exact = math.log(math.fsum(base / base.sum() * mixed**order)) / (order - 1)
    assert at(PoissonSampled(rate, DiscreteGaussian(scale, steps)), order) == pytest.approx(exact, rel=1e-8)


# --- fixed-size sampling --------------------------------------------------------------------------


def test_fixed_size_bound_holds_for_every_dataset_of_a_small_population() -> None:
    """All neighbours of 4 values in {−1, 0, 1} (replacing one moves the sum by at most 2), samples of 2."""
    scale, order = 1.7, 3.5
    points = np.arange(-60, 61)
    noise = np.exp(-(points**2) / (2 * scale**2))
    noise /= noise.sum()

    def output(data: tuple[int, ...]) -> np.ndarray:
        total = np.zeros(points.size)
        samples = list(itertools.combinations(data, 2))
        for sample in samples:
            total += np.roll(noise, sum(sample)) / len(samples)
        return total

    bounds = {a: at(FixedSizeSampled(2, 4, DiscreteGaussian(scale, 2, REPLACE)), a) for a in (1.2, order, 12.0)}
    worst = dict.fromkeys(bounds, 0.0)
    for rest in itertools.combinations_with_replacement((-1, 0, 1), 3):
        for old, new in itertools.permutations((-1, 0, 1), 2):
            p, q = output((old, *rest)), output((new, *rest))
            inner = slice(8, -8)  # away from where the shifted noise wraps around, which weighs nothing
            for a in bounds:
                moment = math.fsum(np.exp(a * np.log(p[inner]) + (1 - a) * np.log(q[inner])))
                worst[a] = max(worst[a], math.log(moment) / (a - 1))
    for a, bound in bounds.items():
        assert 0.3 * bound < worst[a] <= bound


@pytest.mark.parametrize("order", [2.0, 3.0, 8.0, 20.0, 64.0])
@pytest.mark.parametrize(("size", "scale"), [(1, 1.0), (10, 2.0), (50, 5.0)])
def test_fixed_size_gaussian_is_below_the_published_bound(size: int, scale: float, order: float) -> None:
    from dp_accounting.rdp import rdp_privacy_accountant as oracle

    published = oracle._compute_rdp_sample_wor_gaussian(size / 100, scale, [order])[0]
    found = at(FixedSizeSampled(size, 100, Gaussian(scale, 1.0, REPLACE)), order)
    poisson = at(PoissonSampled(size / 100, Gaussian(scale)), order)
    assert poisson * (1 - 1e-8) <= found <= published


@pytest.mark.parametrize("kind", [Laplace, Gaussian])
def test_fixed_size_moment_is_the_integral_of_hockey_stick_divergences(kind: type[Gaussian]) -> None:
    from accountant.pld_profiles import amplified_curve, unsampled_curve

    order = 3.2
    event = FixedSizeSampled(20, 100, kind(0.9, 1.0, REPLACE))
    curve = amplified_curve(event.rate, unsampled_curve(event.event))
    x = np.linspace(curve.bottom, curve.top, 2_000_001)
    t = np.exp(x)
    excess = curve.delta(x) - np.maximum(0.0, -np.expm1(x))
    integral = np.trapezoid(order * (order - 1) * t ** (order - 1) * excess, x)
    assert at(event, order) == pytest.approx(math.log1p(integral) / (order - 1), rel=1e-6)


# --- other libraries ------------------------------------------------------------------------------


def test_same_as_opacus_at_all_orders() -> None:
    from opacus.accountants.analysis import rdp as opacus

    orders = [1 + x / 10.0 for x in range(1, 100, 7)] + list(range(12, 64, 3))
    for rate, scale in ((0.01, 1.1), (0.2, 0.8), (0.001, 3.0), (1.0, 1.5)):
        theirs = opacus.compute_rdp(q=rate, noise_multiplier=scale, steps=1, orders=orders)
        ours = rdp(PoissonSampled(rate, Gaussian(scale)), orders)
        assert np.allclose(ours, theirs, rtol=AGREE, atol=1e-12)


def test_same_as_dp_accounting_where_it_is_exact() -> None:
    """Its fractional orders add absolute values of alternating terms and are above the exact value."""
    from dp_accounting.rdp import rdp_privacy_accountant as oracle

    whole = [2, 3, 5, 8, 16, 64, 256]
    for rate, scale in ((0.01, 1.1), (0.3, 0.7), (1e-4, 1.0), (0.5, 5.0)):
        ours = rdp(PoissonSampled(rate, Gaussian(scale)), whole)
        assert np.allclose(ours, oracle._compute_rdp_poisson_subsampled_gaussian(rate, scale, whole), rtol=AGREE)
    theirs = oracle._compute_rdp_poisson_subsampled_gaussian(0.01, 1.1, [1.5, 4.7])
    assert np.all(rdp(PoissonSampled(0.01, Gaussian(1.1)), (1.5, 4.7)) <= theirs)
    from dp_accounting.rdp import RdpAccountant

    grid = [o for o in DEFAULT_ORDERS if 1.1 < o < 900]
    accountant = RdpAccountant(orders=grid).compose(_dp_laplace(0.7))
    assert np.allclose(rdp(Laplace(0.7), grid), accountant._rdp, rtol=AGREE)


def _dp_laplace(scale: float) -> object:
    import dp_accounting

    return dp_accounting.LaplaceDpEvent(scale)


# --- structure ------------------------------------------------------------------------------------


def test_several_laplace_coordinates_are_dominated_by_one() -> None:
    """Hockey-stick divergences of two coordinates that move by s and t, against one that moves by s + t."""
    x = np.linspace(-25.0, 25.0, 2001)
    width = x[1] - x[0]

    def density(shift: float) -> np.ndarray:
        return 0.5 * np.exp(-np.abs(x - shift))

    for first, second in ((0.5, 0.5), (0.2, 1.5), (1.0, 2.0)):
        p = np.outer(density(first), density(second))
        q = np.outer(density(0.0), density(0.0))
        for epsilon in (0.0, 0.4, 1.0, 1.4):
            two = np.maximum(p - math.exp(epsilon) * q, 0.0).sum() * width**2
            one = max(0.0, -math.expm1((epsilon - first - second) / 2))
            assert two <= one + 1e-4  # the quadrature's own error; the gap itself is far larger
            if epsilon < first + second - 0.5:
                assert two < one


def test_compositions_add_and_nothing_is_free() -> None:
    step, count = PoissonSampled(0.1, Gaussian(1.0)), Laplace(2.0)
    together = rdp(Composed((Repeated(step, 10), count, step, Nothing())))
    assert np.allclose(together, 11 * rdp(step) + rdp(count), rtol=1e-12)
    assert np.all(np.isinf(rdp(Composed((step, NotPrivate())))))
    assert np.all(rdp(Composed(())) == 0)


def test_the_events_own_adjacency_counts_and_nothing_is_doubled() -> None:
    for adjacency in Adjacency:
        assert at(Gaussian(2.0, 3.0, adjacency), 5.0) == pytest.approx(5 * 9 / 8, rel=1e-9)


def test_sampling_everybody_is_not_sampling() -> None:
    for kind in (Gaussian, Laplace, DiscreteGaussian, DiscreteLaplace):
        for adjacency in Adjacency:
            base = kind(1.5, 2, adjacency)
            assert np.array_equal(rdp(PoissonSampled(1.0, base)), rdp(base))
        assert np.array_equal(rdp(FixedSizeSampled(7, 7, kind(1.5, 2, REPLACE))), rdp(kind(1.5, 2, REPLACE)))


@given(
    kind=st.sampled_from([Gaussian, Laplace, DiscreteGaussian, DiscreteLaplace]),
    sampling=st.sampled_from(["poisson", "replace", "fixed"]),
    scale=st.floats(-3.0, 8.0).map(lambda e: 10**e),
    rate=st.floats(-12.0, 0.0).map(lambda e: 10**e),
    steps=st.integers(1, 50),
)
@example(kind=DiscreteGaussian, sampling="fixed", scale=10**3.25, rate=0.1, steps=1)
@settings(max_examples=60, deadline=None)
def test_curves_rise_with_the_order_and_fall_with_noise_whatever_the_numbers(
    kind: type[Gaussian], sampling: str, scale: float, rate: float, steps: int
) -> None:
    """No warning (they are errors), no negative or missing value, monotone as Rényi divergences are."""

    def event(noise: float) -> PoissonSampled | FixedSizeSampled:
        if sampling == "poisson":
            return PoissonSampled(rate, kind(noise, steps))
        if sampling == "replace":
            return PoissonSampled(rate, kind(noise, 2 * steps, REPLACE), steps)
        return FixedSizeSampled(1, max(1, round(1 / rate)), kind(noise, steps, REPLACE))

    orders = (1.01, 1.2, 2.0, 5.0, 31.0, 100.0, math.inf)
    curve = rdp(event(scale), orders)
    assert np.all(curve > 0)
    assert not np.any(np.isnan(curve))
    assert np.all(curve[1:] >= curve[:-1] * (1 - 1e-8))
    noisier = rdp(event(scale * 1.5), orders)
    assert np.all(noisier <= curve * (1 + 1e-8))
    unsampled = rdp(event(scale).event, orders)
    assert np.all(curve <= unsampled * (1 + 1e-8))


@pytest.mark.parametrize("steps", [1, 50])
def test_a_grid_too_fine_to_be_summed_costs_no_less_and_hardly_more(steps: int) -> None:
    """A continuous Gaussian of scale √(σ² − 64) stands for it; just below that size the exact sum can be compared."""
    orders = (1.01, 2.0, 31.0, 100.0)

    def cost(kind: type[Gaussian], scale: float) -> np.ndarray:
        return rdp(FixedSizeSampled(1, 10, kind(scale, steps, REPLACE)), orders)

    summed = cost(DiscreteGaussian, 1800.0)
    assert np.all(summed <= cost(Gaussian, math.sqrt(1800.0**2 - 64)) * (1 + 1e-8))
    assert cost(DiscreteGaussian, 1950.0) == pytest.approx(cost(Gaussian, math.sqrt(1950.0**2 - 64)), rel=1e-9)
    assert np.all(cost(DiscreteGaussian, 1950.0) < summed)


def test_orders_must_be_above_one() -> None:
    with pytest.raises(InputError, match="orders must be numbers above 1"):
        rdp(Gaussian(1.0), (1.0, 2.0))
    with pytest.raises(InputError):
        rdp(Gaussian(1.0), ())


def test_the_curve_is_shared_and_read_only() -> None:
    curve = rdp(Gaussian(1.0))
    with pytest.raises(ValueError, match="read-only"):
        curve[0] = 0.0


def test_moments_keep_their_digits_next_to_one_and_do_not_overflow() -> None:
    for shift in (1e-9, 1e-3, 0.5, 300.0):
        ratio = np.array([shift, -shift])
        mass = 1 / (1 + np.exp(ratio))  # symmetric randomised response with epsilon = shift
        with mp.workdps(60):
            s, a = mp.mpf(shift), mp.mpf(4.5)
            q = 1 / (1 + mp.exp(s))
            exact = mp.log(q * mp.exp(a * s) + (1 - q) * mp.exp(-a * s))
        found = log_moment(Pair(np.log(mass), ratio), np.array([4.5]))[0]
        assert found == pytest.approx(float(exact), rel=1e-9)
