"""MMD² and witness functions against the direct way in torch."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import torch

from benchmarks.measure import Result, in_process, seconds
from privfair.kernels import EnergyKernel, GaussianKernel, mmd2, witness


def run() -> list[Result]:
    return [*mmd2_of_a_million(), mmd2_against_matrices(), *witness_against_direct_sums(), import_of_accountant()]


def mmd2_of_a_million() -> list[Result]:
    elapsed, memory = in_process(
        "import numpy as np\n"
        "from privfair.kernels import EnergyKernel, mmd2\n"
        "rng = np.random.default_rng(0)\n"
        "mmd2(rng.normal(size=1_000_000), rng.normal(0.1, 1, 1_000_000), EnergyKernel())"
    )
    return [
        Result("energy mmd2, 2 × 1,000,000 scores: time with start-up", elapsed, 60, "s", at_least=False),
        Result("energy mmd2, 2 × 1,000,000 scores: peak memory", memory, 1, "GB", at_least=False),
    ]


def mmd2_against_matrices() -> Result:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=20_000), rng.normal(0.1, 1, 20_000)
    tx, ty = torch.from_numpy(x), torch.from_numpy(y)

    def mean_distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a[:, None] - b[None, :]).abs().mean()

    def by_matrices() -> torch.Tensor:
        return mean_distance(tx, ty) - mean_distance(tx, tx) / 2 - mean_distance(ty, ty) / 2

    kernel = EnergyKernel()
    assert abs(float(by_matrices()) - mmd2(x, y, kernel)) < 1e-10
    ratio = seconds(by_matrices) / seconds(lambda: mmd2(x, y, kernel), repeats=5)
    return Result("energy mmd2, 2 × 20,000 scores: times faster than n×n matrices in torch", ratio, 200, "×")


def witness_against_direct_sums() -> list[Result]:
    rng = np.random.default_rng(0)
    y0, y1, z = rng.uniform(size=1000), rng.beta(2, 3, 1000), rng.uniform(size=1_000_000)
    t0, t1, tz = torch.from_numpy(y0), torch.from_numpy(y1), torch.from_numpy(z)

    def energy(d: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return -d.abs().mean(1) / 2, -d.sign().mean(1) / 2

    def gaussian(d: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        value = torch.exp(d.square() * (-0.5 / 0.3**2))
        return value.mean(1), -(value * d).mean(1) / 0.3**2

    results = []
    part = tz[:100_000]  # the direct way is linear in the points: a tenth of them, times ten
    for kernel, rule in ((EnergyKernel(), energy), (GaussianKernel(0.3), gaussian)):

        def direct(rule: object = rule) -> tuple[torch.Tensor, torch.Tensor]:
            chunks = [(rule(c[:, None] - t0), rule(c[:, None] - t1)) for c in part.split(2000)]  # type: ignore[operator]
            return tuple(torch.cat([a[i] - b[i] for a, b in chunks]) for i in (0, 1))  # type: ignore[return-value]

        c = witness(y0, y1, kernel)
        ours, reference = c.with_derivative(part.numpy()), direct()
        assert all(np.abs(a - b.numpy()).max() < 1e-7 for a, b in zip(ours, reference, strict=True))

        def fast(kernel: object = kernel) -> object:
            return witness(y0, y1, kernel).with_derivative(z)  # type: ignore[arg-type]

        ratio = 10 * seconds(direct) / seconds(fast, repeats=5)
        results.append(
            Result(
                f"witness C and C′ at 1,000,000 points, 2 × 1,000 samples, {kernel}: times faster than sums",
                ratio,
                20,
                "×",
            )
        )
    return results


def import_of_accountant() -> Result:
    code = "import sys, accountant; print(int('torch' in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    return Result("import accountant: modules of torch loaded", float(loaded), 0, "", at_least=False)
