"""A kernel with noise on it, or with noise taken off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from numpy.typing import ArrayLike

from privfair.kernels.base import Form, Kernel, NoDeconvolution
from privfair.mechanisms.noise import GaussianNoise, Noise
from privfair.util import FloatArray


@dataclass(frozen=True)
class NoisyKernel(Kernel):
    """A base kernel, and how often each noise was put on (+) or taken off (−)."""

    base: Kernel
    powers: tuple[tuple[Noise, int], ...]
    noisy_form: Form

    @property
    def form(self) -> Form:
        """Worked out when the kernel was made."""
        return self.noisy_form

    @property
    def bounded(self) -> bool:
        """As the base: noise with a finite mean changes no growth."""
        return self.base.bounded

    def log_spectral_density(self, frequency: ArrayLike) -> FloatArray:
        """ln S(ω) + Σ power·ln φ(ω): a second way to the same kernel, used to check the first."""
        result = self.base.log_spectral_density(frequency)
        for noise, power in self.powers:
            result = result + power * noise.log_characteristic_function(frequency)
        return result

    def _with_noise(self, noise: Noise, power: int) -> Kernel:
        return with_noise(self.base, dict(self.powers), noise, power)

    def __str__(self) -> str:
        """For example gaussian:0.3 * laplace:0.5, and / where noise was taken off."""
        text = str(self.base)
        for noise, power in self.powers:
            text += f" {'*' if power > 0 else '/'} {noise}" * abs(power)
        return text


def with_noise(base: Kernel, powers: Mapping[Noise, int], noise: Noise, power: int) -> Kernel:
    """The base kernel under `powers` and one more noise; noise put on and taken off again cancels exactly."""
    total = {**powers, noise: powers.get(noise, 0) + power}
    total = {law: n for law, n in total.items() if n and law.scale}
    if not total:
        return base
    form = base.form
    for law, n in sorted(total.items(), key=lambda item: -item[1]):  # put on first, then take off
        for _ in range(abs(n)):
            form = form.convolved(law) if n > 0 else form.deconvolved(law)
    if not form.exists:
        raise _no_deconvolution(base, noise, -total.get(noise, power))
    return NoisyKernel(base, tuple(total.items()), form)


def _no_deconvolution(base: Kernel, noise: Noise, sides: int) -> NoDeconvolution:
    """The error that says what would work instead."""
    from privfair.kernels.families import GaussianKernel

    twice = sides > 1
    if isinstance(noise, GaussianNoise):
        least = noise.scale * (2**0.5 if twice else 1)
        remedy = (
            f"Gaussian noise of scale {noise.scale:g} can only be taken off a Gaussian kernel whose bandwidth is above "
            f"{least:.4g}"
        )
        if isinstance(base, GaussianKernel):
            remedy += f", or here with a noise scale below {base.bandwidth / (2**0.5 if twice else 1):.4g}."
        else:
            remedy += "; with Laplace noise a rational quadratic or Matérn-5/2 kernel works too."
    else:
        kinds = (
            "Gaussian, rational quadratic and Matérn-5/2"
            if twice
            else ("Gaussian, rational quadratic, Matérn-3/2 and Matérn-5/2")
        )
        remedy = f"Laplace noise can be taken off {kinds} kernels, of any bandwidth."
    remedy += " Or keep the kernel and accept the convolved objective (`convolve`)."
    times = " on both sides" if twice else ""
    return NoDeconvolution(
        "kernel",
        f"must have a spectrum that, divided by the noise's characteristic function{' squared' if twice else ''}, is "
        f"integrable, to take {noise} noise off{times}",
        str(base),
        remedy,
    )
