"""The kernel explorer's functions in a real browser, against Python's."""

from __future__ import annotations

import itertools
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy import special, stats

from accountant.bounds import spent
from accountant.conversion import gaussian_delta
from accountant.events import Gaussian, Laplace, PoissonSampled, Repeated
from privfair.kernels.base import Kernel
from privfair.kernels.comparison import Deconvolved, variance_factor
from privfair.kernels.families import parse_kernel, parse_noise
from privfair.kernels.mmd import mmd2_estimate
from privfair.kernels.witness import witness
from privfair.mechanisms.score_release import Noise
from privfair.reports.explorer import write_explorer
from tests.browser.explorer_pages import open_page

pytestmark = pytest.mark.slow

KERNELS = ["gaussian", "laplace", "energy", "matern32", "matern52", "rq", "cauchy"]
POWERS = (0, 1, 2, -1, -2)
DISTANCES = np.array([0.0, 0.004, 0.05, 0.21, 0.7, 1.5, 4.0])


@pytest.fixture(scope="module")
def page(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The explorer, open."""
    path = tmp_path_factory.mktemp("explorer") / "kernels.html"
    return open_page(browser, write_explorer([(parse_kernel("gaussian:0.3"), parse_noise("laplace:0.2"))], path))


def noisy(kernel: Kernel, noise: Noise, power: int) -> Kernel | None:
    """The kernel with the noise put on or taken off, by Python; None where there is none."""
    if power < 0:
        return Deconvolved.of(kernel, noise, -power).kernel
    for _ in range(power):
        kernel = kernel.convolve(noise)
    return kernel


def names(kind: str) -> list[str]:
    widths = (0.02, 0.2, 0.3, 2.0)
    if kind == "energy":
        return ["energy"]
    if kind == "rq":
        return ["rq:0.02:0.6", "rq:0.3:2.0", "rq:2.0:20.0"]  # tables of these are slow to make in Python
    return [f"{kind}:{width}" for width in widths]


def test_special_functions(page: Any) -> None:
    u = np.concatenate([np.linspace(-3, 8, 221), [15.0, 60.0, 1e4, 1e12]])
    scaled, plain = page.evaluate("u => [u.map(privfairExplorer.erfcx), u.map(privfairExplorer.erfc)]", u.tolist())
    np.testing.assert_allclose(scaled, special.erfcx(u), rtol=3e-15)
    np.testing.assert_allclose(plain, special.erfc(u), rtol=2e-14, atol=1e-300)
    orders, x = [0.1, 0.5, 1.5, 19.5], [1e-6, 0.01, 1.0, 10.0, 500.0]
    bessel = page.evaluate("([o, x]) => o.map(n => x.map(t => privfairExplorer.logScaledBesselK(n, t)))", [orders, x])
    np.testing.assert_allclose(bessel, [[np.log(special.kve(n, t)) for t in x] for n in orders], rtol=1e-12, atol=1e-12)
    gamma = page.evaluate("privfairExplorer.logGamma(0.6)")
    assert gamma == pytest.approx(special.gammaln(0.6), rel=1e-13)


def test_repeated_integrals_of_erfc_against_forty_digits(page: Any) -> None:
    u = [0.0, 0.3, 1.0, 3.0, 5.9, 6.1, 12.0, 100.0]
    found = page.evaluate("u => [1, 2].map(k => u.map(t => privfairExplorer.scaledRepeatedErfc(t, k)))", u)
    with mpmath.workdps(60):
        for at, first, second in zip(u, *found, strict=True):
            t = mpmath.mpf(at)
            zeroth = mpmath.exp(t * t) * mpmath.erfc(t)
            exact = 1 / mpmath.sqrt(mpmath.pi) - t * zeroth
            assert first == pytest.approx(float(exact), rel=1e-13)
            assert second == pytest.approx(float((zeroth - 2 * t * exact) / 4), rel=3e-12)


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_kernels_and_spectra_are_those_of_python(page: Any, kind: str, law: str) -> None:
    """Every form to 1e-8 of its largest value (measured: 1e-11), where it exists and only there."""
    frequencies = [1e-3, 0.1, 1.0, 5.0, 40.0]
    cases = list(itertools.product(names(kind), (0.01, 0.2, 0.3, 1.0), POWERS))
    answers = page.evaluate(
        """([cases, d, w]) => cases.map(([name, noise, power]) => {
            const X = privfairExplorer, parts = X.parseKernel(name), law = X.parseNoise(noise);
            const form = X.form(parts, law, power);
            return form && [d.map(form), w.map(x => X.logSpectrum(parts, law, power, x))];
        })""",
        [[[name, f"{law}:{scale}", power] for name, scale, power in cases], DISTANCES.tolist(), frequencies],
    )
    for (name, scale, power), answer in zip(cases, answers, strict=True):
        expected = noisy(parse_kernel(name), parse_noise(f"{law}:{scale}"), power)
        assert (answer is None) == (expected is None), (name, scale, power)
        if expected is None:
            continue
        values = expected.profile(DISTANCES)
        np.testing.assert_allclose(
            answer[0], values, rtol=1e-8, atol=1e-8 * np.abs(values).max(), err_msg=f"{name} {scale} {power}"
        )
        np.testing.assert_allclose(answer[1], expected.log_spectral_density(frequencies), rtol=1e-10, atol=1e-10)


PAIRS = list(
    itertools.product(
        ["gaussian:0.3", "laplace:0.3", "energy", "matern32:0.2", "matern52:0.3", "rq:0.3:2", "cauchy:0.1",
         "0.5*gaussian:0.3+energy", "gaussian:0.45+2*cauchy:0.2"],
        ["laplace:0.2", "laplace:1", "gaussian:0.1", "gaussian:0.3"],
    )
)  # fmt: skip


@pytest.mark.parametrize(("kernel", "noise"), PAIRS)
def test_mmd_witness_and_words_are_those_of_python(page: Any, kernel: str, noise: str) -> None:
    """On the same scores: MMD², its standard error and C to 1e-8 of the kernel's height; the reason word for word."""
    rng = np.random.default_rng(3)
    x, y, z = rng.beta(2, 5, 90), rng.beta(4, 4, 110), np.array([-0.2, 0.0, 0.31, 0.9])
    answers, reasons, shown = page.evaluate(
        """([kernel, noise, powers, x, y, z]) => {
            const X = privfairExplorer, parts = X.parseKernel(kernel), law = X.parseNoise(noise);
            const all = powers.map(power => {
                const form = X.form(parts, law, power);
                if (!form) return null;
                const v = X.table(form, X.finest(parts, law, power), 1.5), m = X.mmd2(v, x, y);
                return [m.value, m.standardError, ...X.witness(v, x, y, z).value];
            });
            const reasons = [1, 2].map(sides => X.noDeconvolution(parts, law, sides));
            return [all, reasons, [X.kernelName(parts), X.noiseName(law)]];
        }""",
        [kernel, noise, list(POWERS), x.tolist(), y.tolist(), z.tolist()],
    )
    k, n = parse_kernel(kernel), parse_noise(noise)
    assert shown == [str(k), str(n)]
    assert reasons == [Deconvolved.of(k, n, sides).reason for sides in (1, 2)]
    for power, answer in zip(POWERS, answers, strict=True):
        form = noisy(k, n, power)
        if form is None:
            assert answer is None
            continue
        estimate = mmd2_estimate(x, y, form)
        exact = [estimate.value, estimate.standard_error, *witness(x, y, form, tolerance=1e-11)(z)]
        height = max(1.0, abs(float(form.profile(0.0))))
        np.testing.assert_allclose(answer, exact, rtol=0, atol=1e-8 * height)


@pytest.mark.parametrize(
    ("kernel", "noise"),
    [("gaussian:0.3", "laplace:0.25"), ("gaussian:0.3", "gaussian:0.2"), ("matern52:0.3", "laplace:0.3"),
     ("cauchy:0.2", "laplace:0.1"), ("matern32:0.3", "laplace:0.3"), ("gaussian:0.4+0.5*rq:0.3:2", "laplace:0.2")],
)  # fmt: skip
def test_the_price_of_deconvolution_is_that_of_python(page: Any, kernel: str, noise: str) -> None:
    x, y, price = page.evaluate(
        """([kernel, noise]) => {
            const X = privfairExplorer, start = JSON.parse(document.getElementById("start").textContent);
            const state = { ...X.page.state, parts: X.parseKernel(kernel), noise: X.parseNoise(noise), count: 60 };
            const c = X.computed(state);
            return [Array.from(c.x), Array.from(c.y), X.priceOf(c, start.quadrature)];
        }""",
        [kernel, noise],
    )
    k, n = parse_kernel(kernel), parse_noise(noise)
    assert price == pytest.approx(variance_factor(k, k.deconvolve(n), n, x, y), rel=1e-7)


def test_one_release_costs_what_the_accountant_says(page: Any) -> None:
    for sigma, epsilon in itertools.product((0.03, 0.3, 1.0, 10.0), (0.1, 1.0, 5.0, 400.0)):
        delta = page.evaluate("([e, s]) => privfairExplorer.gaussianDelta(e, s)", [epsilon, sigma])
        assert delta == pytest.approx(gaussian_delta(epsilon, sigma), rel=1e-10, abs=1e-300)
    for sigma in (0.05, 0.3, 1.0, 10.0):
        found = page.evaluate('s => privfairExplorer.oneRelease({ kind: "gaussian", scale: s }, 1e-5)', sigma)
        assert gaussian_delta(found, sigma) == pytest.approx(1e-5, rel=1e-9)
        assert page.evaluate('e => privfairExplorer.scaleFor("gaussian", e, 1e-5)', found) == pytest.approx(
            sigma, rel=1e-9
        )
    assert page.evaluate('privfairExplorer.oneRelease({ kind: "laplace", scale: 0.2 }, 1e-5)') == pytest.approx(5.0)
    assert page.evaluate('privfairExplorer.oneRelease({ kind: "none", scale: 0 }, 1e-5) === Infinity')


@pytest.mark.parametrize(
    ("law", "scale", "rate", "rounds"),
    [("gaussian", 0.5, 0.1, 100), ("gaussian", 2.0, 0.05, 1000), ("gaussian", 5.0, 1.0, 10),
     ("gaussian", 0.2, 0.01, 20), ("gaussian", 1.0, 0.1, 1),
     ("laplace", 0.5, 0.1, 100), ("laplace", 2.0, 0.02, 10), ("laplace", 0.2, 0.1, 100),
     ("laplace", 3.0, 1.0, 50)],
)  # fmt: skip
def test_many_rounds_are_bounded_and_not_far_above_the_accountant(
    page: Any, law: str, scale: float, rate: float, rounds: int
) -> None:
    """Never below the (nearly exact) PLD; at most 3% above the accountant's own Rényi bound, which has more orders."""
    found = page.evaluate(
        "([kind, scale, rate, rounds]) => privfairExplorer.manyRounds({ kind, scale }, 1e-5, rate, rounds)",
        [law, scale, rate, rounds],
    )
    event = Repeated(PoissonSampled(rate, (Gaussian if law == "gaussian" else Laplace)(scale)), rounds)
    # PLD rounds its bound up, by less than 1e-6 of it
    assert found >= spent(event, 1e-5, "pld").epsilon * (1 - 1e-6)
    assert found <= spent(event, 1e-5, "rdp").epsilon * 1.03


def test_random_numbers_follow_their_laws_and_can_be_had_again(page: Any) -> None:
    n = 20_000
    u, normal, laplace, again, other = page.evaluate(
        """n => {
            const X = privfairExplorer, noise = (kind, seed, stream) => Array.from(X.unitNoise(kind, n, seed, stream));
            return [Array.from({ length: n }, (_, i) => X.uniform(5, 2, i)), noise("gaussian", 5, 3),
                noise("laplace", 5, 4), noise("gaussian", 5, 3), noise("gaussian", 6, 3)];
        }""",
        n,
    )
    for sample, law in ((u, stats.uniform), (normal, stats.norm), (laplace, stats.laplace)):
        assert stats.kstest(sample, law.cdf).pvalue > 1e-4
    assert again == normal
    # correlations of independent streams, of neighbours: N(0, 1/n), 5 standard errors
    for a, b in ((normal, other), (u[1:], u[:-1]), (normal[1:], normal[:-1]), (normal, laplace)):
        assert abs(np.corrcoef(a, b)[0, 1]) < 5 / np.sqrt(n - 1)


def test_groups_without_difference_are_alike_and_others_are_not(page: Any) -> None:
    for shape in ("shifted", "spread", "peaks"):
        for difference in (0.0, 0.8):
            x, y = page.evaluate(
                "([s, d]) => privfairExplorer.exampleGroups(s, d, 0.8, 400, 9).map(g => Array.from(g))",
                [shape, difference],
            )
            assert 0 < min(x + y) <= max(x + y) < 1
            pvalue = stats.ks_2samp(x, y).pvalue
            assert pvalue > 1e-3 if difference == 0 else pvalue < 1e-6, (shape, difference, pvalue)
