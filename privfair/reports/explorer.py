"""The kernel explorer: one offline page on which kernels, noise and ε are moved by sliders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accountant.errors import InputError
from privfair.kernels.base import Kernel
from privfair.kernels.combination import SumKernel
from privfair.kernels.comparison import noise_quadrature
from privfair.mechanisms.noise import GaussianNoise, LaplaceNoise, Noise
from privfair.reports.pages import render_page, write_page

TITLE = "Kernels with and without privacy noise"
SCRIPTS = tuple(
    f"explorer{part}.js"
    for part in ("_special", "_forms", "_kernels", "_stats", "_privacy", "_plot", "_figures", "_words", "")
)
LEAST, MOST = 1e-3, 1e3  # bandwidths, scales and factors on the page: for these its functions are tested


def explorer_page(pairs: Sequence[tuple[Kernel, Noise]]) -> str:
    """The text of the page; it starts at the first kernel and noise and links to the others."""
    for kernel, noise in pairs:
        _require_on_page(kernel, noise)
    starts = [{"name": f"{k} with {n}", "hash": f"k={_exact(k)}&n={_exact_noise(n)}"} for k, n in pairs]
    first_kernel, first_noise = pairs[0]
    start = {"kernel": _exact(first_kernel), "noise": _exact_noise(first_noise), "quadrature": _quadrature()}
    return render_page("explorer.html", title=TITLE, plots=False, scripts=SCRIPTS, start=start, starts=starts)


def write_explorer(pairs: Sequence[tuple[Kernel, Noise]], path: Path) -> Path:
    """The path of the written page. A file that is not a page of ours is left alone: `InputError`."""
    page = explorer_page(pairs)
    try:
        write_page(page, path)
    except InputError as error:
        raise InputError("--html", error.rule, error.found, error.remedy) from None
    return path


def _require_on_page(kernel: Kernel, noise: Noise) -> None:
    """Refuse what the page's sliders and formulas are not made for."""
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
