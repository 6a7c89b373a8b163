"""The figure and the tables of a kernel comparison."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from privfair.arrays import FloatArray
from privfair.kernels.base import Kernel
from privfair.kernels.comparison import Comparison, monte_carlo_band

# Okabe & Ito's palette: told apart by colour-blind readers too; line styles say it again.
_STYLES = {"clean": ("#000000", "-"), "convolved": ("#0072B2", "--"), "deconvolved": ("#D55E00", "-.")}
_BAND_DRAWS = 2000


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
    """The distance up to which there is something to see."""
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
    """Where the curves leave room: below the peak of the unbounded energy kernel, above the others'."""
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
