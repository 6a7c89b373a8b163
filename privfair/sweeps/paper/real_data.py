"""What the two experiments on real data share: the appendix's hyper-parameters ("Real Data"), and the figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from privfair.sweeps.figures import frontier_figure, scatter_figure
from privfair.sweeps.paper.claims import (
    FULL_BATCH,
    LAMBDA,
    AreaClaim,
    Claim,
    Evidence,
    Experiment,
    Line,
    at_end,
    average,
    best_accuracy,
    level,
    log_steps,
)

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


# ---- Figure 3b of the paper and its scatter plot: COMPAS, three clients by age group.


COMPAS = Experiment(
    name="compas",
    title="Performance comparison on COMPAS",
    source="section 6, figure 3b; appendix, “Real Data” and “Scatter Plots”",
    common={"data.name": "compas", **COMMON},
    lines=LINES,
    quick=QUICK,
    claims=(
        Claim("At high accuracy our method performs comparably to the centralized baseline.",
              best_accuracy("ours"), "not below", best_accuracy("centralized"), 0.01),
        Claim("At high accuracy local group fairness performs comparably to the centralized baseline.",
              best_accuracy("local group fairness"), "not below", best_accuracy("centralized"), 0.01),
        Claim("Local group fairness sacrifices significant accuracy to achieve fairness below 0.1.",
              best_accuracy("local group fairness", 0.1), "below", best_accuracy("centralized", 0.1), 0.01),
        Claim("Our approach stays competitive with the centralized method even at fairness values of 0.05.",
              best_accuracy("ours", 0.05), "not below", best_accuracy("centralized", 0.05), 0.02),
        Claim("For stronger regularization our method exhibits lower accuracy …",
              at_end("accuracy", "ours", last=True), "below", best_accuracy("ours", 0.1), 0.02),
        Claim("… and higher unfairness.",
              at_end("unfairness", "ours", last=True), "above", at_end("unfairness", "centralized", last=True)),
        Claim("FedFB achieves strong fairness …", average("unfairness", "FedFB"), "not above", level(0.1)),
        Claim("… but at the cost of accuracy.",
              average("accuracy", "FedFB"), "below", best_accuracy("ours", 0.1)),
        Claim("… and its accuracy-fairness trade-off is not adjustable.",
              at_end("unfairness", "FedFB", last=True), "within", at_end("unfairness", "FedFB", last=False), 0.05),
        AreaClaim("FairFed performs well but does not match the performance of our method.",
                  "FairFed", "below", "ours", "centralized"),
    ),
    draw=draw("COMPAS"),
    notes=(
        "Age and priors are scaled by public ranges; the authors' code leaves them as they are.",
        *NOTES,
    ),
)  # fmt: skip


# ---- Figure 3a of the paper and its scatter plot: Communities & Crime, one client per state.


COMMUNITIES = Experiment(
    name="communities",
    title="Performance comparison on Communities & Crime",
    source="section 6, figure 3a; appendix, “Real Data” and “Scatter Plots”",
    common={"data.name": "communities", **COMMON},
    lines=LINES,
    quick=QUICK,
    claims=(
        Claim("Agnostic federated learning fails to induce group fairness.",
              average("unfairness", "agnostic"), "above", level(0.2)),
        Claim("… it is no fairer than training without a penalty.",
              average("unfairness", "agnostic"), "not below", at_end("unfairness", "ours", last=False), 0.1),
        AreaClaim("Our method outperforms the local group fairness approach.",
                  "ours", "above", "local group fairness", "centralized"),
        AreaClaim("FairFed performs comparably to our method.", "FairFed", "within", "ours", "centralized", 0.1),
        AreaClaim("Our method achieves a trade-off similar to training on aggregated data.",
                  "ours", "not below", "centralized", "centralized", 0.1),
        AreaClaim("FairFed achieves a trade-off similar to training on aggregated data.",
                  "FairFed", "not below", "centralized", "centralized", 0.1),
    ),
    draw=draw("Communities & Crime"),
    notes=(
        "States with four communities or more: 42 states, 1,988 rows (the authors' code: more than four, 41 and 1,984; "
        "--set data.min_communities=5).",
        *NOTES,
    ),
)  # fmt: skip
