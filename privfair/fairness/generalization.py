"""How far a model's accuracy and unfairness on its training records can be from the truth."""

from __future__ import annotations

import math
from dataclasses import dataclass

from accountant.errors import InputError
from privfair.kernels.base import Kernel


@dataclass(frozen=True)
class GeneralizationBound:
    """With probability 1 − δ at once: accuracy ≥ empirical − accuracy_slack, MMD ≤ empirical + mmd_slack."""

    accuracy_slack: float
    mmd_slack: float


def generalization_bound(
    *, records: int, records_in_group_1: int, vc_dimension: int, delta: float, kernel: Kernel
) -> GeneralizationBound:
    """Proposition A.1 of Rychener, Kuhn & Hu (AISTATS 2025), for binary decisions and the MMD between them.

        R(n) = ½ √(4/n · (V(log(2n/V) + 1) − log(δ/12))),   accuracy slack R(N),   MMD slack α(R(N₁) + R(N − N₁))

    with α = sup_{‖ψ‖≤1} |ψ(0) − ψ(1)| = √(κ(0,0) + κ(1,1) − 2κ(0,1)): 1 for the energy kernel. It needs V < N₁ < N − V.
    Records are taken to be independent draws; the MMD is that of decisions in {0, 1}, not of scores.
    """
    if not 0 < delta < 1:
        raise InputError("delta", "must be in (0, 1)", delta)
    if vc_dimension < 1:
        raise InputError("vc_dimension", "must be 1 or more", vc_dimension, "d + 1 for a linear model of d features.")
    if not vc_dimension < records_in_group_1 < records - vc_dimension:
        raise InputError(
            "records_in_group_1",
            f"must be above the VC dimension {vc_dimension} and below {records - vc_dimension}",
            records_in_group_1,
            "The bound says nothing about groups smaller than the model's capacity.",
        )

    def slack(n: int) -> float:
        capacity = vc_dimension * (math.log(2 * n / vc_dimension) + 1)
        return 0.5 * math.sqrt(4 / n * (capacity - math.log(delta / 12)))

    alpha = math.sqrt(max(0.0, float(kernel(0.0, 0.0) + kernel(1.0, 1.0) - 2 * kernel(0.0, 1.0))))
    both_groups = slack(records_in_group_1) + slack(records - records_in_group_1)
    return GeneralizationBound(slack(records), alpha * both_groups)
