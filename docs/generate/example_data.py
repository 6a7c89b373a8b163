"""Two federations of two data holders in which fairness at every holder and fairness over all records disagree."""

from __future__ import annotations

import numpy as np

from privfair.datasets.records import Records, Schema, SensitiveAttribute
from privfair.fairness.metrics import Predicted, unfairness

Holder = dict[str, tuple[int, int]]  # by group: (selected, not selected)
GROUPS = ("women", "men")

FEDERATIONS: dict[str, dict[str, Holder]] = {
    "Fair at every holder, unfair over all": {
        "north": {"women": (16, 4), "men": (64, 16)},
        "south": {"women": (16, 64), "men": (4, 16)},
    },
    "Unfair at every holder, fair over all": {
        "north": {"women": (35, 15), "men": (15, 35)},
        "south": {"women": (15, 35), "men": (35, 15)},
    },
}
SCHEMA = Schema((), "binary", "label", (0.0, 1.0), (SensitiveAttribute("sex", GROUPS),))


def predicted(holders: list[Holder]) -> Predicted:
    """The people of these holders, with the decisions about them."""
    groups = [i for holder in holders for i, name in enumerate(GROUPS) for _ in range(sum(holder[name]))]
    decisions = [
        float(d)
        for holder in holders
        for name in GROUPS
        for d, n in zip((1, 0), holder[name], strict=True)
        for _ in range(n)
    ]
    count = len(groups)
    labels = np.zeros(count)  # statistical parity does not look at them
    records = Records(np.zeros((count, 0)), labels, np.array(groups)[:, None], np.zeros((count, 0), bool))
    return Predicted(records, np.array(decisions), np.zeros(count), np.array(decisions))


def rates(federation: dict[str, Holder]) -> dict[str, tuple[list[float], list[int], float]]:
    """By holder, and over all records: shares selected, numbers of people, and privfair's statistical parity gap."""
    reported = {}
    for name, holders in [*((n, [h]) for n, h in federation.items()), ("all records", list(federation.values()))]:
        chosen = [sum(holder[group][0] for holder in holders) for group in GROUPS]
        people = [sum(sum(holder[group]) for holder in holders) for group in GROUPS]
        gap = unfairness(predicted(holders), SCHEMA)["statistical_parity"]
        reported[name] = ([c / p for c, p in zip(chosen, people, strict=True)], people, float(gap or 0.0))
    return reported
