"""How a model's scores are spread over each group: recomputed from the model and the data, exact, never released."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from accountant.errors import InputError
from privfair.api import load
from privfair.datasets.registry import load as load_dataset
from privfair.fairness.metrics import THRESHOLD
from privfair.reports.figures import Figure, score_ecdf, score_histogram
from privfair.reports.run_facts import RunFacts

BINS = 20
GRID = 51


def score_figures(facts: RunFacts) -> tuple[list[Figure], str]:
    """(figures for each attribute, why there are none): histograms and cumulative shares of the test records' scores.

    The data are loaded again; where they are not those of the run (their accuracy is another), nothing is drawn.
    """
    if facts.exact is None:
        return [], ""
    data, seed = facts.config.data, facts.config.run.seed
    try:
        federation = load_dataset(data.name, seed=seed, test_fraction=data.test_fraction, **data.options)
        model = load(Path(facts.path))
        test = federation.pooled_test()
        scores = model.scores(test.features)
    except InputError as error:
        return [], f"The distributions of scores are left out: the data or the model could not be loaded ({error})"
    schema = federation.schema
    if schema.task == "binary" and len(test):
        right = float(np.mean((scores >= THRESHOLD) == (test.labels == 1)))
        if facts.exact["accuracy"] is None or abs(right - facts.exact["accuracy"]) > 1e-6:
            return [], "The distributions of scores are left out: the data found are not those that the run was on."
    if not len(test):
        return [], "There are no test records to show scores of."
    low, high = (0.0, 1.0) if schema.task == "binary" else (float(scores.min()), float(scores.max()))
    bins = np.linspace(low, high if high > low else low + 1.0, BINS + 1)
    grid = np.linspace(low, high, GRID)
    figures = []
    for number, attribute in enumerate(schema.sensitive):
        of = {value: np.sort(scores[test.groups[:, number] == group]) for group, value in enumerate(attribute.values)}
        present = {value: own for value, own in of.items() if own.size}
        shares = {value: (np.histogram(own, bins)[0] / own.size).tolist() for value, own in present.items()}
        sizes = {value: int(own.size) for value, own in present.items()}
        below = {
            value: (np.searchsorted(own, grid, side="right") / own.size).tolist() for value, own in present.items()
        }
        figures += [
            score_histogram(str(number), attribute.name, bins.tolist(), shares, sizes),
            score_ecdf(str(number), attribute.name, grid.tolist(), below),
        ]
    return figures, ""
