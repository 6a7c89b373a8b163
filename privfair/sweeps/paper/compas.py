"""Figure 3b of the paper and its scatter plot: COMPAS, three clients by age group."""

from __future__ import annotations

from privfair.sweeps.paper.claims import AreaClaim, Claim
from privfair.sweeps.paper.evidence import at_end, average, best_accuracy, level
from privfair.sweeps.paper.experiment import Experiment
from privfair.sweeps.paper.real_data import COMMON, LINES, NOTES, QUICK, draw

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
