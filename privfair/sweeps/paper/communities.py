"""Figure 3a of the paper and its scatter plot: Communities & Crime, one client per state."""

from __future__ import annotations

from privfair.sweeps.paper.claims import AreaClaim, Claim
from privfair.sweeps.paper.evidence import at_end, average, level
from privfair.sweeps.paper.experiment import Experiment
from privfair.sweeps.paper.real_data import COMMON, LINES, NOTES, QUICK, draw

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
