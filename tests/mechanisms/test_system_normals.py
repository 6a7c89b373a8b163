"""Draws that nobody can repeat: their law against the normal law, by tests with a known rate of false alarms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from privfair.mechanisms import entropy
from privfair.mechanisms.entropy import system_words

SIZE = 1 << 20


@pytest.fixture
def repeatable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The words of a seeded generator instead: a test of the law must not fail by chance."""
    rng = np.random.default_rng(8)
    monkeypatch.setattr(entropy, "system_words", lambda n: rng.integers(0, 2**64, n, dtype=np.uint64))


def single(size: int) -> NDArray[np.float64]:
    """Draws of the ziggurat itself: sums of one."""
    words = np.random.default_rng(3).integers(0, 2**64, 2 * size, dtype=np.uint64)
    draws = np.zeros(size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entropy, "_SUMMED", 1)  # the same code, not compiled, with one summand
        count = entropy._fill(words, entropy._WIDTHS, entropy._HEIGHTS, np.zeros(3), draws)
    assert count == size
    return draws


def test_the_layers_have_equal_areas_and_close_at_the_top() -> None:
    widths, heights = entropy._WIDTHS, entropy._HEIGHTS
    areas = widths[1:-1] * np.diff(heights[1:])
    tail = stats.norm.sf(widths[1]) * math.sqrt(2 * math.pi)
    assert np.allclose(areas, widths[1] * heights[1] + tail, rtol=1e-9)
    assert heights[-1] == 1.0
    assert np.all(np.diff(widths) < 0)


def test_one_draw_of_the_ziggurat_is_normal_in_the_middle_and_in_the_tail() -> None:
    draws = single(200_000)
    assert stats.kstest(draws, "norm").pvalue > 1e-3
    edge = entropy._EDGE
    beyond = np.abs(draws) > edge - 1
    assert abs(beyond.mean() - 2 * stats.norm.sf(edge - 1)) < 4 * math.sqrt(2 * stats.norm.sf(edge - 1) / draws.size)
    assert np.abs(draws).max() > edge  # the tail is reached


@pytest.mark.usefixtures("repeatable")
def test_sums_are_standard_normal() -> None:
    draws = entropy.system_normals(SIZE)
    edges = stats.norm.ppf(np.arange(1, 200) / 200)
    counts = np.bincount(np.searchsorted(edges, draws), minlength=200)
    assert stats.chisquare(counts).pvalue > 1e-3
    for power, expected, spread in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((draws**power).mean() - expected) < 4.5 * math.sqrt(spread / SIZE)
    beyond = 2 * stats.norm.sf(3.5)
    assert abs((np.abs(draws) > 3.5).mean() - beyond) < 4.5 * math.sqrt(beyond / SIZE)
    assert abs(np.corrcoef(draws[1:], draws[:-1])[0, 1]) < 4.5 / math.sqrt(SIZE)


def test_a_draw_goes_on_with_the_next_words_where_they_ran_out() -> None:
    rng, state, result, done = np.random.default_rng(5), np.zeros(3), np.zeros(20_000), 0
    for _ in range(10 * result.size):  # three words at a time: every draw needs several calls
        words = rng.integers(0, 2**64, 3, dtype=np.uint64)
        done += entropy._compiled_fill()(words, entropy._WIDTHS, entropy._HEIGHTS, state, result[done:])
        if done == result.size:
            break
    assert done == result.size
    assert stats.kstest(result, "norm").pvalue > 1e-3


def test_words_differ_from_call_to_call_and_fill_all_bits() -> None:
    first, second = system_words(50_000), system_words(50_000)
    assert np.unique(np.concatenate([first, second])).size == 100_000
    for bit in range(64):
        share = float(((first >> np.uint64(bit)) & np.uint64(1)).mean())
        assert abs(share - 0.5) < 6 * 0.5 / math.sqrt(first.size)
    assert system_words(0).size == 0
    assert system_words(7).size == 7


def test_every_call_takes_a_fresh_key(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[int] = []
    real = entropy.os.urandom

    def counted(n: int) -> bytes:
        keys.append(n)
        return real(n)

    monkeypatch.setattr(entropy.os, "urandom", counted)
    system_words(1000)
    system_words(1000)
    assert keys == [32, 16, 32, 16]
