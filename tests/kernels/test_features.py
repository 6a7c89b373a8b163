"""Features of kernels on a range: against the kernels themselves, mpmath's integrals and each other."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accountant.errors import InputError
from privfair.kernels import EnergyKernel, GaussianKernel, Kernel, LaplaceKernel, witness
from privfair.kernels.families import parse_kernel
from privfair.kernels.features import (
    LEFT_OUT,
    MOST,
    Eigenfunctions,
    Features,
    FeatureWitness,
    UnitFeatures,
    best_weights,
    features_of,
    mercer,
    unit_features,
    weighted,
)

NAMES = ["energy", "laplace:0.3", "gaussian:0.3", "matern32:0.3", "matern52:0.5", "rq:0.3:2", "0.5*gaussian:0.2+energy"]
RANGES = [(0.0, 1.0), (-1.0, 3.0)]


def kernel_error(features: Features) -> float:
    """sup_x [κ̄(x, x) − Σ φ_j(x)²] on a fine grid: |C − C_J| is at most twice that, up to a constant.

    What is left out is positive definite, so its largest value is on its diagonal.
    """

    def means(x: np.ndarray) -> np.ndarray:
        """m(x): the mean of κ(x, ·) over the range."""
        nodes, weights = features._panels(x)
        return np.asarray((weights * features.kernel.profile(x[:, None] - nodes)).sum(axis=1))

    x = np.linspace(features.low, features.high, 1025)
    outer, mass = np.polynomial.legendre.leggauss(128)
    inner = means(features.low + features.length * (outer + 1) / 2)
    centred = float(features.kernel.profile(0.0)) - 2 * means(x) + float(mass / 2 @ inner)
    return float(max((centred - (features.values(x) ** 2).sum(axis=1)).max(), 0.0))


def differences_of_kernel(kernel: Kernel, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """κ(x, y) − κ(x, y′) − κ(x′, y) + κ(x′, y′), x′ and y′ the first of each: what no term in x or y alone changes."""
    gram = kernel(x[:, None], y[None, :])
    return np.asarray(gram - gram[:, :1] - gram[:1] + gram[:1, :1])


@pytest.mark.parametrize(("name", "span"), [*((n, RANGES[0]) for n in NAMES), *((n, RANGES[1]) for n in NAMES[:3])])
def test_features_give_the_kernel_up_to_terms_in_one_score_within_the_stated_error(
    name: str, span: tuple[float, float]
) -> None:
    kernel = parse_kernel(name)
    features = features_of(kernel, *span, 8 if name == "energy" else None)
    x = np.linspace(*span, 101)
    phi = features.values(x) - features.values(x[:1])
    error = np.abs(differences_of_kernel(kernel, x, x) - phi @ phi.T).max()
    # four values of a remainder whose largest is `kernel_error`
    assert error <= 4 * kernel_error(features) + 1e-9
    assert error >= 0.2 * kernel_error(features)  # the statement is not far from the truth


def test_the_energy_kernel_has_the_cosine_series() -> None:
    features = features_of(EnergyKernel(), 0.0, 1.0, 8)
    j = np.arange(1, 9)
    x = np.array([0.0, 0.3, 1.0])
    np.testing.assert_allclose(features.values(x), math.sqrt(2) / (np.pi * j) * np.cos(np.pi * j * x[:, None]))
    assert (features.values([0.0])[0] ** 2).sum() == pytest.approx(0.31, abs=0.005)
    # all of the series: 1/3; what is left out is largest at the ends, where every cosine is 1 or −1
    assert kernel_error(features) == pytest.approx(1 / 3 - (features.values([0.0])[0] ** 2).sum(), rel=1e-9)
    # the sines are orthogonal: the mean over z of the squared remainder is Σ_{j > 8} φ_j(y)²
    assert features.slope_error == pytest.approx(math.sqrt(kernel_error(features)), rel=1e-2)


@pytest.mark.parametrize("span", RANGES)
def test_the_general_expansion_of_the_energy_kernel_is_its_cosine_series(span: tuple[float, float]) -> None:
    cosines = features_of(EnergyKernel(), *span, 24)
    general = Eigenfunctions(EnergyKernel(), *span, 24)
    x = np.linspace(*span, 57)
    for order in (0, 1):
        largest = np.abs(cosines.values(x, order)).max()
        np.testing.assert_allclose(general.values(x, order), cosines.values(x, order), atol=1e-7 * largest)
    np.testing.assert_allclose(general.slope_norms, cosines.slope_norms, rtol=1e-8)


@pytest.mark.parametrize("kernel", [LaplaceKernel(0.3), GaussianKernel(0.4)])
@pytest.mark.parametrize("j", [0, 3])
def test_eigenfunctions_solve_the_integral_equation_by_mpmath(kernel: Kernel, j: int) -> None:
    """∫ κ(x, y) e(y) dy − mean over x of the same = λ e(x), for e orthogonal to 1."""
    features = features_of(kernel, 0.0, 1.0, 8)
    eigenvalue = float(mercer(kernel, 1.0).eigenvalues[j])

    def e(y: float) -> float:
        return float(features.values([float(y)])[0, j])

    def integral(x: float) -> float:
        return float(mpmath.quad(lambda y: float(kernel(x, float(y))) * e(y), [0, x, 1]))

    assert float(mpmath.quad(e, [0, 0.5, 1])) == pytest.approx(0.0, abs=1e-10)
    places = [0.1, 0.45, 0.8]
    found = np.array([integral(x) for x in places])
    wanted = eigenvalue * np.array([e(x) for x in places])
    np.testing.assert_allclose(np.diff(found), np.diff(wanted), atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_the_witness_function_is_within_the_stated_errors(name: str) -> None:
    """The hardest groups: a single score each."""
    kernel, rng = parse_kernel(name), np.random.default_rng(5)
    features = features_of(kernel, 0.0, 1.0)
    z = np.linspace(0, 1, 4001)
    for first, second in rng.random((6, 2)):
        exact = witness([first], [second], kernel)
        mine = FeatureWitness(features, (features.values([first]) - features.values([second]))[0])
        gap = exact(z) - mine.evaluate(z)
        assert np.ptp(gap) / 2 <= 2 * kernel_error(features) + 1e-8
        rms = math.sqrt(np.mean((exact.derivative(z) - mine.evaluate(z, 1)) ** 2))
        assert rms <= 2 * features.slope_error * (1 + 1e-2) + 1e-8  # 1%: the mean over a grid, the sup over another
        assert np.abs(mine.evaluate(z, 1) - features.values(z, 1) @ _difference(features, first, second)).max() < 1e-7


def _difference(features: object, first: float, second: float) -> np.ndarray:
    values = features.values([first, second])  # type: ignore[attr-defined]
    return np.asarray(values[0] - values[1])


def test_a_laplace_kernel_needs_more_than_32_features_for_one_percent() -> None:
    """As measured against the whole kernel; smooth kernels need few."""
    by_count = [kernel_error(features_of(LaplaceKernel(0.3), 0.0, 1.0, n)) for n in (8, 32, MOST)]
    assert by_count[1] > 0.01
    assert by_count[0] > by_count[1] > by_count[2]
    assert kernel_error(features_of(GaussianKernel(0.3), 0.0, 1.0, 8)) < 1e-6


@pytest.mark.parametrize("name", ["laplace:0.3", "gaussian:0.1", "energy"])
def test_the_default_leaves_out_as_much_as_it_says(name: str) -> None:
    kernel = parse_kernel(name)
    expansion = mercer(kernel, 1.0)
    count = features_of(kernel).count
    assert 1 - expansion.eigenvalues[:count].sum() / expansion.trace <= LEFT_OUT
    assert count == 8 or 1 - expansion.eigenvalues[: count - 1].sum() / expansion.trace > LEFT_OUT


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    scores=st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=40),
    count=st.sampled_from([5, None]),
)
def test_no_score_whatever_leaves_the_unit_ball_or_moves_further_than_the_spread(
    name: str, scores: list[float], count: int | None
) -> None:
    unit = unit_features(parse_kernel(name), 0.0, 1.0, count)
    psi = unit.values(np.concatenate([scores, np.linspace(0, 1, 40)]))
    assert np.isfinite(psi).all()
    assert np.linalg.norm(psi, axis=1).max() <= 1
    assert np.linalg.norm(psi[:, None] - psi[None], axis=2).max() <= unit.spread


@pytest.mark.parametrize("name", NAMES)
def test_the_bounds_of_length_and_spread_are_close(name: str) -> None:
    unit = unit_features(parse_kernel(name), 0.0, 1.0, None)
    psi = unit.values(np.linspace(0, 1, 20001))
    assert 0.998 <= np.linalg.norm(psi, axis=1).max() <= 1
    some = psi[::20]
    assert 0.97 * unit.spread <= np.linalg.norm(some[:, None] - some[None], axis=2).max() <= unit.spread <= 2


def test_centring_gives_the_energy_kernel_a_radius_of_one_half() -> None:
    """‖φ(x) − (φ(0) + φ(1))/2‖² = x/2 + (1 − x)/2 − 1/4 for the whole kernel, whose distance² is |x − y|."""
    features = features_of(EnergyKernel(), 0.0, 1.0, MOST)
    middle = features.values([0.0, 1.0]).mean(axis=0)
    centred = weighted(features, np.ones(MOST), middle)
    assert centred.radius == pytest.approx(0.5, abs=0.01)
    assert weighted(features, np.ones(MOST), 0 * middle).radius == pytest.approx(math.sqrt(1 / 3), abs=0.01)
    assert centred.spread * centred.radius == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("name", ["energy", "laplace:0.3", "gaussian:0.1"])
def test_no_other_weights_disturb_the_slope_less(name: str) -> None:
    features = features_of(parse_kernel(name))
    best, rng = weighted(features, *best_weights(features)), np.random.default_rng(3)
    for scale in (0.02, 0.2, 1.0):
        for _ in range(20):
            weights = best.weights * np.exp(scale * rng.standard_normal(best.count))
            centre = best.centre + 0.3 * scale * rng.standard_normal(best.count) * np.abs(best.centre)
            # 0.3%: the weights are within 0.1% of the best, bounds of suprema within 0.12%
            assert best.slope_noise <= weighted(features, weights, centre).slope_noise * 1.003
    plain = weighted(features, np.ones(best.count), best.centre)
    assert best.slope_noise < 0.97 * plain.slope_noise


def test_the_slope_noise_is_that_of_a_simulation() -> None:
    """Noise of scale 1 on Σψ; means of squares of 4,000 draws at 200 places each, whose error is below 5%."""
    unit, rng = unit_features(LaplaceKernel(0.3), 0.0, 1.0, None), np.random.default_rng(0)
    noise = rng.standard_normal((4000, unit.count)) * (unit.radius / unit.weights)
    z = (np.arange(200) + 0.5) / 200
    slopes = noise @ unit.features.values(z, 1).T
    by_draw = (slopes**2).mean(axis=1)
    error = 5 * by_draw.std() / math.sqrt(4000)  # five standard errors: a false alarm in 2 million
    assert by_draw.mean() == pytest.approx(unit.slope_noise**2, abs=error)
    assert error < 0.15 * unit.slope_noise**2


def test_mean_features_come_back_from_unit_features() -> None:
    unit = unit_features(GaussianKernel(0.2), -1.0, 3.0, None)
    x = np.random.default_rng(2).uniform(-1, 3, 50)
    np.testing.assert_allclose(
        unit.mean_features(unit.values(x).mean(axis=0)), unit.features.values(x).mean(axis=0), atol=1e-12
    )


def test_beyond_the_range_the_witness_is_constant() -> None:
    unit: UnitFeatures = unit_features(EnergyKernel(), 0.0, 2.0, 8)
    mine = FeatureWitness(unit.features, np.arange(8.0))
    z = np.array([-1.0, 0.0, 2.0, 5.0])
    assert mine.evaluate(z)[0] == mine.evaluate(z)[1]
    assert mine.evaluate(z)[2] == mine.evaluate(z)[3]
    assert mine.evaluate(z, 1)[[0, 3]].tolist() == [0.0, 0.0]


def test_what_cannot_be_is_refused_with_the_reason() -> None:
    with pytest.raises(InputError, match="features must be between 1 and 64; found 65"):
        features_of(EnergyKernel(), 0.0, 1.0, 65)
    with pytest.raises(
        InputError, match=r"kernel must be wide enough for 64 features on \[0, 1\]; found 'laplace:0.01'"
    ):
        features_of(LaplaceKernel(0.01))
    with pytest.raises(InputError, match="low must be below high"):
        features_of(EnergyKernel(), 1.0, 1.0)
