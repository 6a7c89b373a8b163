"""Quotas of shared scores."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privfair.fairness.tracking import largest_remainder_quotas, random_quotas

COUNTS = st.lists(st.lists(st.integers(0, 50), min_size=2, max_size=2), min_size=1, max_size=12).map(np.array)


@given(counts=COUNTS, samples=st.integers(1, 120), seed=st.integers(0, 1000))
@settings(max_examples=80, deadline=None)
def test_quotas_are_whole_possible_and_complete(counts: np.ndarray, samples: int, seed: int) -> None:
    for quotas in (
        random_quotas(counts, samples, np.random.default_rng(seed)),
        largest_remainder_quotas(counts, samples),
    ):
        assert np.all(quotas >= 0)
        assert np.all(quotas <= counts)
        np.testing.assert_array_equal(quotas.sum(axis=0), np.minimum(samples, counts.sum(axis=0)))


@pytest.mark.parametrize("claimed", [10**9 - 101, 10**9 - 100, 10**9, 2**31, 10**12])
def test_a_claim_of_a_billion_records_is_no_error(claimed: int) -> None:
    """What a data holder says that it has must not end the run of the others."""
    counts = np.array([[60, 50], [claimed, 0], [40, 0]])
    for quotas in (random_quotas(counts, 100, np.random.default_rng(0)), largest_remainder_quotas(counts, 100)):
        assert np.all((quotas >= 0) & (quotas <= counts))
        assert quotas.sum(axis=0).tolist() == [100, 50]
        assert quotas[1, 0] > 90


def test_random_quotas_are_proportional_on_average() -> None:
    """Mean over 4,000 draws within 5 standard errors of the hypergeometric mean."""
    counts = np.array([[3], [40], [157]])
    draws = np.array([random_quotas(counts, 20, np.random.default_rng(seed))[:, 0] for seed in range(4000)])
    share = counts[:, 0] / 200
    error = np.sqrt(20 * share * (1 - share) * (180 / 199) / 4000)
    assert np.all(np.abs(draws.mean(axis=0) - 20 * share) <= 5 * error)
