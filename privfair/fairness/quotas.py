"""How many scores each client shares from each cell."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from privfair.fairness.cells import Counts

LARGEST_POOL = 10**9  # numpy draws without replacement from fewer than these


def random_quotas(counts: Counts, samples: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """(clients, cells): how many of `samples` scores per cell fall on each client in a uniform draw from all records.

    Drawn without replacement over the pooled cell (multivariate hypergeometric), so that the union of what the
    clients share is a simple random sample: the gradient estimator is then unbiased (Lemma 4.1), also where a client
    has fewer records than would earn it one score. All records of a cell are shared where it has fewer than `samples`.
    From a billion records and more, which nobody has but a client may claim, it is drawn with replacement, and no
    client is asked for more than it claims.
    """
    quotas = np.zeros_like(counts)
    for cell in range(counts.shape[1]):
        available = counts[:, cell]
        total = int(available.sum())
        wanted = min(samples, total)
        if total < LARGEST_POOL:
            quotas[:, cell] = rng.multivariate_hypergeometric(available, wanted, method="marginals")
        else:
            quotas[:, cell] = np.minimum(rng.multinomial(wanted, available / total), available)
    return quotas


def largest_remainder_quotas(counts: Counts, samples: int) -> NDArray[np.int64]:
    """(clients, cells): `samples` scores per cell in proportion to the counts; remainders to the largest fractions.

    The same every round: a client whose share rounds to nothing never speaks for its records.
    """
    quotas = np.zeros_like(counts)
    for cell in range(counts.shape[1]):
        available = counts[:, cell]
        total = int(available.sum())
        wanted = min(samples, total)
        if not total:
            continue
        exact = available * wanted / total
        quotas[:, cell] = np.floor(exact).astype(np.int64)
        left = wanted - int(quotas[:, cell].sum())
        quotas[np.argsort(-(exact - quotas[:, cell]), kind="stable")[:left], cell] += 1
    return quotas
