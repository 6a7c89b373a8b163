"""Kernels with and without privacy noise: figure and tables of a comparison, and the explorer, a page with sliders."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from accountant.errors import InputError
from privfair.kernels.base import Kernel, SumKernel
from privfair.kernels.comparison import Comparison, monte_carlo_band, noise_quadrature
from privfair.mechanisms.score_release import GaussianNoise, LaplaceNoise, Noise
from privfair.reports.pages import render_page, write_page
from privfair.util import FloatArray

# Okabe & Ito's palette, which colour-blind readers can tell apart; line styles repeat it.
_STYLES = {"clean": ("#000000", "-"), "convolved": ("#0072B2", "--"), "deconvolved": ("#D55E00", "-.")}
_BAND_DRAWS = 2000
TITLE = "Kernels with and without privacy noise"
SCRIPTS = tuple(
    f"explorer{part}.js"
    for part in ("_special", "_forms", "_kernels", "_stats", "_privacy", "_plot", "_figures", "_words", "")
)
LEAST, MOST = 1e-3, 1e3  # bandwidths, scales and factors on the page: for these its functions are tested


def write_figure(comparisons: Sequence[Comparison], path: Path, *, rng: np.random.Generator) -> Path:
    """One row per kernel and noise: the kernel's three forms, their spectra, and the Monte-Carlo check."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 3.1 * len(comparisons) + 0.6), layout="constrained")
    rows = figure.subplots(len(comparisons), 3, squeeze=False)
    for axes, c in zip(rows, comparisons, strict=True):
        reach = _reach(c)
        _draw_kernels(axes[0], c, reach)
        _draw_spectra(axes[1], c)
        _draw_check(axes[2], c, reach, rng)
    for axis, title in zip(rows[0], ("kernel", "spectrum", f"mean of {_BAND_DRAWS} noisy draws, ±3 s.e."), strict=True):
        axis.set_title(title, fontsize=12, fontweight="bold")
    for axis, name in zip(rows[-1], ("distance d", "frequency ω", "distance d"), strict=True):
        axis.set_xlabel(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    return path


def _reach(c: Comparison) -> float:
    """The largest distance that is worth drawing."""
    width = c.convolved.effective_bandwidth
    return 1.0 if width is None else 3.5 * width


def _forms(c: Comparison) -> Iterable[tuple[str, Kernel]]:
    yield "clean", c.kernel
    yield "convolved", c.convolved
    if c.deconvolved.kernel is not None:
        yield "deconvolved", c.deconvolved.kernel


def _draw_kernels(axis: Any, c: Comparison, reach: float) -> None:
    d = np.linspace(-reach, reach, 601)
    for form, kernel in _forms(c):
        colour, line = _STYLES[form]
        axis.plot(d, kernel.profile(d), color=colour, linestyle=line, label=form)
    axis.axhline(0, color="0.85", linewidth=0.8, zorder=0)
    axis.set_ylabel(f"{c.kernel}\nnoise {c.noise}", fontsize=11)
    _add_legend(axis, c, title=None if c.deconvolved.kernel else "no deconvolution exists")


def _add_legend(axis: Any, c: Comparison, title: str | None = None) -> None:
    """Put the legend where curves leave room: below the unbounded energy kernel's peak, above the others."""
    if c.kernel.bounded:
        low, high = axis.get_ylim()
        axis.set_ylim(low, high + 0.3 * (high - low))
    where = "upper center" if c.kernel.bounded else "lower center"
    axis.legend(frameon=False, fontsize=9, title_fontsize=9, loc=where, ncols=3 if c.kernel.bounded else 1, title=title)


def _draw_spectra(axis: Any, c: Comparison) -> None:
    width = c.convolved.effective_bandwidth or 0.3
    omega = np.geomspace(0.05 / width, 30 / width, 400)
    for form, kernel in _forms(c):
        colour, line = _STYLES[form]
        axis.loglog(omega, kernel.spectral_density(omega), color=colour, linestyle=line)
    top = float(np.max(c.kernel.spectral_density(omega)))
    axis.set_ylim(top * 1e-7, top * 5)


def _draw_check(axis: Any, c: Comparison, reach: float, rng: np.random.Generator) -> None:
    """Simulated means against closed forms: noise on the clean kernel, and noise on the deconvolved one."""
    d = np.linspace(-reach, reach, 81)
    targets = [("clean → convolved", c.kernel, c.convolved, "convolved")]
    if c.deconvolved.kernel is not None:
        targets.append(("deconvolved → clean", c.deconvolved.kernel, c.kernel, "deconvolved"))
    for label, simulated, expected, form in targets:
        mean, error = monte_carlo_band(simulated, c.noise, d, draws=_BAND_DRAWS, rng=rng)
        colour, _ = _STYLES[form]
        axis.fill_between(d, mean - 3 * error, mean + 3 * error, color=colour, alpha=0.3, linewidth=0, label=label)
        axis.plot(d, expected.profile(d), color=colour, linewidth=1)
    _add_legend(axis, c)


def write_curves(comparisons: Sequence[Comparison], path: Path) -> Path:
    """Every form of every kernel on a grid of distances: value and derivative."""
    rows: list[list[object]] = []
    for c in comparisons:
        d: FloatArray = np.linspace(-_reach(c), _reach(c), 201)
        for form, kernel in _forms(c):
            curves = zip(d, kernel.profile(d), kernel.profile(d, 1), strict=True)
            rows.extend([str(c.kernel), str(c.noise), form, *(repr(float(x)) for x in row)] for row in curves)
    return _write_csv(path, ["kernel", "noise", "form", "distance", "value", "derivative"], rows)


def write_mmd2(comparisons: Sequence[Comparison], path: Path) -> Path:
    """The MMD² of each kernel and noise with standard errors."""
    rows: list[list[object]] = []
    for c in comparisons:
        estimates = {
            "clean": c.mmd2_clean,
            "noisy": c.mmd2_noisy,
            "convolved": c.mmd2_convolved,
            "deconvolved": c.mmd2_deconvolved,
        }
        rows.extend(
            [str(c.kernel), str(c.noise), form, repr(e.value), repr(e.standard_error)]
            for form, e in estimates.items()
            if e is not None
        )
    return _write_csv(path, ["kernel", "noise", "form", "mmd2", "standard_error"], rows)


def _write_csv(path: Path, header: list[str], rows: list[list[object]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
    return path


def explorer_page(pairs: Sequence[tuple[Kernel, Noise]]) -> str:
    """The text of the page; it starts at the first kernel and noise and links to the others."""
    for kernel, noise in pairs:
        _require_on_page(kernel, noise)
    starts = [{"name": f"{k} with {n}", "hash": f"k={_exact(k)}&n={_exact_noise(n)}"} for k, n in pairs]
    first_kernel, first_noise = pairs[0]
    start = {"kernel": _exact(first_kernel), "noise": _exact_noise(first_noise), "quadrature": _quadrature()}
    return render_page("explorer.html", title=TITLE, plots=False, scripts=SCRIPTS, start=start, starts=starts)


def write_explorer(pairs: Sequence[tuple[Kernel, Noise]], path: Path) -> Path:
    """Write the page and return its path. Raise if the file exists and is not a page that privfair wrote."""
    page = explorer_page(pairs)
    try:
        write_page(page, path)
    except InputError as error:
        raise InputError("--html", error.rule, error.found, error.remedy) from None
    return path


def _require_on_page(kernel: Kernel, noise: Noise) -> None:
    """Raise on what the page's sliders and formulas are not made for."""
    for factor, part in _parts(kernel):
        numbers = [factor, *(value for value in (getattr(part, "bandwidth", None),) if value is not None)]
        if not all(LEAST <= number <= MOST for number in numbers) or getattr(part, "alpha", 1.0) > 100:
            rule = f"must have bandwidths and factors between {LEAST:g} and {MOST:g}, and α up to 100, for the page"
            raise InputError("--kernel", rule, str(kernel), "Leave out --html, or choose others.")
    if noise.scale and not LEAST <= noise.scale <= MOST:
        rule = f"must have a scale between {LEAST:g} and {MOST:g} for the page"
        raise InputError("--noise", rule, str(noise), "Leave out --html, or choose another.")


def _parts(kernel: Kernel) -> tuple[tuple[float, Kernel], ...]:
    return kernel.parts if isinstance(kernel, SumKernel) else ((1.0, kernel),)


def _exact(kernel: Kernel) -> str:
    """The kernel as the command line takes it, with all digits of its numbers."""
    return "+".join(_exact_part(factor, part) for factor, part in _parts(kernel))


def _exact_part(factor: float, kernel: Kernel) -> str:
    name, *_ = str(kernel).split(":")
    numbers = [repr(kernel.bandwidth)] if hasattr(kernel, "bandwidth") else []
    numbers += [repr(kernel.alpha)] if name == "rq" and hasattr(kernel, "alpha") else []
    return ("" if factor == 1 else f"{factor!r}*") + ":".join([name, *numbers])


def _exact_noise(noise: Noise) -> str:
    name, _ = str(noise).split(":")
    return f"{name}:{noise.scale!r}" if noise.scale else "none"


def _quadrature() -> dict[str, Any]:
    """Nodes and weights of the expectation over noise of scale 1, for the price of deconvolution."""
    laws: dict[str, Noise] = {"gaussian": GaussianNoise(1.0), "laplace": LaplaceNoise(1.0)}
    found = {}
    for kind, law in laws.items():
        nodes, weights = noise_quadrature(law)
        found[kind] = {"nodes": nodes.tolist(), "weights": weights.tolist()}
    return found
