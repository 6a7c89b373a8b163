"""The weights of noisy scores from several clients: padding and unequal shares leave no trace in expectation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from privfair.arrays import FloatArray
from privfair.mechanisms.score_release import fill_share, unpadding_weights
from privfair.terms import Sharing, Terms


@dataclass(frozen=True, eq=False)
class Pooled:
    """Scores and weights of every cell, and the weight of the middle of the range that undoes the padding."""

    scores: tuple[FloatArray, ...]
    weights: tuple[FloatArray, ...]
    pads: tuple[float, ...]


def pool(replies: Mapping[int, Sequence[FloatArray]], terms: Terms, sharing: Sharing) -> Pooled:
    """Client k speaks for a share ñ_k/Σñ of a cell; its mean embedding is [mean κ(z, ỹ) − (1 − ρ)κ̃(z, middle)]/ρ.

    ρ is the expected share of its message that is records and not padding: 1 where counts are public.
    """
    scores, weights, pads = [], [], []
    for cell in range(terms.cells.shape[1]):
        sharers = [k for k in replies if sharing.quotas[k, cell]]
        counts = np.array([max(int(terms.cells[k, cell]), 1) for k in sharers], dtype=float)
        pad = 0.0
        pieces: list[FloatArray] = [np.zeros(0)]
        their_weights: list[FloatArray] = [np.zeros(0)]
        for k, share in zip(sharers, counts / counts.sum(), strict=True):
            quota = int(sharing.quotas[k, cell])
            each, middle = unpadding_weights(quota, _filled(terms, sharing, k, cell))
            pieces.append(replies[k][cell])
            their_weights.append(np.full(quota, share * each))
            pad += share * middle
        scores.append(np.concatenate(pieces))
        weights.append(np.concatenate(their_weights))
        pads.append(pad)
    return Pooled(tuple(scores), tuple(weights), tuple(pads))


def standard_error(terms: Terms, sharing: Sharing, cell: int, spread: float = 1 / 12**0.5) -> float:
    """Of a cell's mean score as it is estimated from one round's messages; `spread`: of the scores themselves."""
    sharers = np.flatnonzero(sharing.quotas[:, cell])
    counts = np.maximum(terms.cells[sharers, cell], 1).astype(float)
    variance = 0.0
    for k, share in zip(sharers, counts / counts.sum(), strict=True):
        quota, filled = int(sharing.quotas[k, cell]), _filled(terms, sharing, int(k), cell)
        each, _ = unpadding_weights(quota, filled)
        variance += (share * each) ** 2 * quota * (sharing.noise.noise.variance + filled * spread**2)
    return float(variance**0.5)


def _filled(terms: Terms, sharing: Sharing, client: int, cell: int) -> float:
    """ρ: the expected share of a client's message that is records."""
    if sharing.rates is None:
        return 1.0
    quota = int(sharing.quotas[client, cell])
    return fill_share(int(terms.cells[client, cell]), float(sharing.rates[client, cell]), quota)
