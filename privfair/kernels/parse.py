"""Kernels and noise by name: `gaussian:0.3`, `matern52:0.2`, `0.5*gaussian:0.3+energy`, `laplace:0.5`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import TypeVar

from accountant.errors import InputError
from privfair.kernels.base import Kernel
from privfair.kernels.combination import SumKernel
from privfair.kernels.energy import EnergyKernel
from privfair.kernels.gaussian import GaussianKernel
from privfair.kernels.laplace import LaplaceKernel
from privfair.kernels.matern import MaternKernel
from privfair.kernels.rational_quadratic import RationalQuadraticKernel
from privfair.mechanisms.noise import GaussianNoise, LaplaceNoise, Noise

T = TypeVar("T")

# name -> (example, what the numbers after the colons become)
KERNELS: Mapping[str, tuple[str, Callable[..., Kernel]]] = {
    "gaussian": ("gaussian:0.3", lambda bandwidth: GaussianKernel(bandwidth)),
    "laplace": ("laplace:0.3", lambda bandwidth: LaplaceKernel(bandwidth)),
    "energy": ("energy", lambda: EnergyKernel()),
    "matern32": ("matern32:0.3", lambda bandwidth: MaternKernel(bandwidth, 1.5)),
    "matern52": ("matern52:0.3", lambda bandwidth: MaternKernel(bandwidth, 2.5)),
    "rq": ("rq:0.3:2", lambda bandwidth, alpha=1.0: RationalQuadraticKernel(bandwidth, alpha)),
    "cauchy": ("cauchy:0.3", lambda bandwidth: RationalQuadraticKernel(bandwidth, 1.0)),
}
NOISES: Mapping[str, tuple[str, Callable[..., Noise]]] = {
    "gaussian": ("gaussian:0.5", lambda scale: GaussianNoise(scale)),
    "laplace": ("laplace:0.5", lambda scale: LaplaceNoise(scale)),
}


def parse_kernel(text: str) -> Kernel:
    """The kernel a text names; sums with `+`, multiples with `*`."""
    parts = []
    for term in text.split("+"):
        factor, star, name = term.rpartition("*")
        parts.append((_number("kernel", factor, text) if star else 1.0, _parse("kernel", name.strip(), KERNELS)))
    return parts[0][1] if len(parts) == 1 and parts[0][0] == 1.0 else SumKernel(tuple(parts))


def parse_noise(text: str) -> Noise:
    """The noise a text names."""
    return _parse("noise", text.strip(), NOISES)


def _parse(what: str, text: str, known: Mapping[str, tuple[str, Callable[..., T]]]) -> T:
    name, *numbers = text.lower().split(":")
    if name not in known:
        close = get_close_matches(name, known, n=1)
        hint = f"Did you mean {known[close[0]][0]!r}? " if close else ""
        examples = ", ".join(example for example, _ in known.values())
        raise InputError(what, "must be a known name", text, f"{hint}Known, with example numbers: {examples}.")
    example, make = known[name]
    arguments = [_number(what, number, text) for number in numbers]
    try:
        return make(*arguments)
    except TypeError:
        raise InputError(what, f"must be written like {example!r}", text) from None


def _number(what: str, number: str, text: str) -> float:
    try:
        return float(number)
    except ValueError:
        raise InputError(what, f"must have numbers after its colons, not {number!r}", text) from None
