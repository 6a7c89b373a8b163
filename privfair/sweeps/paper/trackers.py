"""Beyond the paper: what is shared for fairness under privacy, noisy scores or sums of features; three datasets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from privfair.sweeps.figures import privacy_figure
from privfair.sweeps.paper.claims import LAMBDA, AnyClaim, AreaClaim, Evidence, Experiment, Line
from privfair.sweeps.paper.private import COMMON, FREE, PRIVATE

EPSILONS = (3.0, 1.0)
LAMBDAS, QUICK_LAMBDAS = (0.0, 10.0, 30.0, 100.0, 300.0), (0.0, 30.0, 100.0)
SCORES, FEATURES = ("Gaussian scores", "Laplace scores", "deconvolved scores"), "features"
SHARED: Mapping[str, Mapping[str, Any]] = {
    "Gaussian scores": {"privacy.predictions": "gaussian"},
    "Laplace scores": {"privacy.predictions": "laplace"},
    "deconvolved scores": {"privacy.predictions": "laplace", "privacy.kernel_correction": "deconvolve"},
    FEATURES: {"fairness.tracker": "embedding", "privacy.prediction_rate": None},  # every record is in the sum
}
NOTES = (
    "The claims were written down before these runs, the settings on Adult and Communities & Crime after a look at one "
    "or two seeds.",
    "Noise and sampling are seeded, so that the figures can be made again: ε is what noise of this size would cost if "
    "nobody knew the seed. λ, rates and steps were chosen on this data, which no ε here covers.",
    "Counts (unless said below), what is shared for fairness, and updates (DP-SGD) are private, at δ = 1e-5 for "
    "everything together, with noise at every client; scores may cost half of ε by themselves, features 0.3 of it.",
    "The kernel is Gaussian with bandwidth 3, the same for all, because the energy kernel cannot be deconvolved.",
)


def _lines(settings: Mapping[str, Any]) -> tuple[Line, ...]:
    """One without privacy, then every way to share at every ε."""
    return (
        Line(FREE, "mmd_fedavg", LAMBDA, LAMBDAS, QUICK_LAMBDAS),
        *(
            Line(name, "mmd_fedavg", LAMBDA, LAMBDAS, QUICK_LAMBDAS,
                 {**PRIVATE, **settings, **shared, "privacy.epsilon": epsilon}, epsilon=epsilon)
            for epsilon in EPSILONS
            for name, shared in SHARED.items()
        ),
    )  # fmt: skip


def _claims() -> tuple[AnyClaim, ...]:
    return (
        *(
            AreaClaim(f"Features at ε = 1 are at least as good as {name} at ε = 3.",
                      f"{FEATURES}, ε = 1", "not below", f"{name}, ε = 3", FREE, 0.05)
            for name in SCORES
        ),
        *(
            AreaClaim(f"At ε = {epsilon:g} features are better than {name}.",
                      f"{FEATURES}, ε = {epsilon:g}", "above", f"{name}, ε = {epsilon:g}", FREE)
            for epsilon in EPSILONS
            for name in SCORES
        ),
        AreaClaim("Features at ε = 3 cost at most a tenth of the frontier.",
                  f"{FEATURES}, ε = 3", "not below", FREE, FREE, 0.1),
    )  # fmt: skip


def _draw(evidence: Evidence, out: Path) -> list[Path]:
    names = {"quality": "accuracy", "notion": "statistical_parity", "free": FREE}
    return privacy_figure(evidence.points, out / "by_epsilon", **names)


def _experiment(data: str, title: str, common: Mapping[str, Any], private: Mapping[str, Any], note: str) -> Experiment:
    """The comparison on one dataset: settings of all runs, and of those with privacy."""
    return Experiment(
        name=f"trackers-{data}",
        title=f"Noisy scores or noisy features, on {title}",
        source="beyond the paper",
        common={**COMMON, "data.name": data, **common},
        lines=_lines(private),
        quick={},
        claims=_claims(),
        draw=_draw,
        notes=(*NOTES, note),
        seeds=20,
        paper=False,
        areas=True,
    )


TRACKERS = (
    _experiment(
        "compas", "COMPAS", {}, {"privacy.prediction_rate": 0.05},
        "Model, rounds, step, clipping and rates as in examples/compas_private.toml.",
    ),
    _experiment(
        "adult", "Adult",
        {"federation.rounds": 60, "federation.learning_rate": 8.0},
        {"privacy.max_grad_norm": 1.0},
        "Clients by occupation; model, step, clipping and rates as in examples/adult_private.toml, 60 rounds.",
    ),
    _experiment(
        "communities", "Communities & Crime",
        {"data.min_communities": 5, "federation.rounds": 40, "federation.learning_rate": 1.0},
        {
            "privacy.counts": "public", "privacy.count_noise": None, "privacy.prediction_rate": 0.1,
            "privacy.max_grad_norm": 1.0,
        },
        "41 states with 48 communities in the mean. How many communities of which group a state has is declared to be "
        "public, so that ε is for replacing a community by another of its group.",
    ),
)  # fmt: skip
