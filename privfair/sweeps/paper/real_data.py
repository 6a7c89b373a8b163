"""What the two experiments on real data share: the appendix's hyper-parameters ("Real Data"), and the figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from privfair.reports.sweep_figures import frontier_figure, scatter_figure
from privfair.sweeps.paper.evidence import Evidence
from privfair.sweeps.paper.experiment import FULL_BATCH, LAMBDA, Line, log_steps

COMMON = {
    "model.name": "mlp",
    "model.hidden": [16],
    "fairness.notion": "statistical_parity",
    "fairness.kernel": "energy",
    "fairness.samples": 100,
    "federation.rounds": 100,
    "federation.local_epochs": 50,
    "federation.batch_size": 100,
    "federation.learning_rate_decay": 0.99,
}
# A quick run has a fifteenth of the local steps; full-gradient training takes larger ones.
QUICK = {"federation.rounds": 40, "federation.local_epochs": 8, "federation.learning_rate_decay": 0.98}
QUICK_LAMBDAS = (0.001, 0.3, 1.0, 3.0, 10.0)
OURS = Line(
    "ours", "mmd_fedavg", LAMBDA, log_steps(1e-5, 10), QUICK_LAMBDAS,
    {"federation.learning_rate": 0.01}, {"federation.local_epochs": 20},  # with larger steps, large λ would diverge
)  # fmt: skip
CENTRALIZED = Line(  # 1,000 full-gradient steps: 100 rounds of 10
    "centralized", "centralized", LAMBDA, log_steps(1e-5, 10), QUICK_LAMBDAS,
    {
        "federation.learning_rate": 0.05, "federation.local_epochs": 10, "federation.batch_size": FULL_BATCH,
        "federation.learning_rate_decay": 1.0,
    },
    {"federation.learning_rate": 0.3, "federation.local_epochs": 5, "federation.learning_rate_decay": 1.0},
)  # fmt: skip
LOCAL = Line(
    "local group fairness", "local_fairness", LAMBDA, log_steps(1e-5, 100), (*QUICK_LAMBDAS[:-1], 100.0),
    {"federation.learning_rate": 0.05}, {},
)  # fmt: skip
FAIRFED = tuple(
    Line(
        f"FairFed, β = {beta:g}", "fairfed", LAMBDA, log_steps(1e-5, 10), QUICK_LAMBDAS,
        {"federation.learning_rate": 0.05, "federation.fairfed_beta": beta},
        {} if beta == 1 else None,
    )
    for beta in (0.5, 1.0, 2.0)
)  # fmt: skip
AGNOSTIC = Line(
    "agnostic", "agnostic", None, settings={"federation.learning_rate": 0.05, "federation.local_epochs": 10},
)  # fmt: skip
FEDFB = Line(
    "FedFB", "fedfb", "federation.fedfb_step", (0.001, 0.05, 0.08, 0.1, 0.2, 0.5, 1.0, 2.0), (0.001, 0.1),
    {
        "federation.learning_rate": 0.001, "federation.local_optimizer": "adam", "federation.rounds": 10,
        "federation.local_epochs": 30, "federation.batch_size": 128, "federation.learning_rate_decay": 1.0,
    },
    {"federation.rounds": 10, "federation.local_epochs": 30, "federation.learning_rate_decay": 1.0},  # short as it is
)  # fmt: skip
LINES = (OURS, CENTRALIZED, LOCAL, *FAIRFED, AGNOSTIC, FEDFB)
NOTES = (
    "50 local epochs, as the appendix says for its own method and local group fairness; the authors' code has 10 "
    "(--set federation.local_epochs=10, which shortens FedFB, too).",
    "FairFed's step and epochs are not given: those of local group fairness were taken.",
    "FedFB's rounds (10), local epochs (30), batch (128) and Adam are the defaults of its authors' code.",
    "The step of agnostic's client weights is not given: 0.01. Clients count by their numbers of records.",
)


def draw(title: str) -> Callable[[Evidence, Path], list[Path]]:
    """The paper's two figures of a dataset: the frontier (figure 3) and the scatter plot (appendix)."""

    def both(evidence: Evidence, out: Path) -> list[Path]:
        names = {"quality": "accuracy", "notion": "statistical_parity", "title": title}
        return [
            *frontier_figure(evidence.points, out / "frontier", **names),
            *scatter_figure(evidence.points, out / "scatter", **names),
        ]

    return both
