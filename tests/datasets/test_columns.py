from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accountant.errors import InputError
from privfair.datasets.columns import TRANSFORMS, Categorical, Numeric, encode_all, numbers


def test_a_range_becomes_minus_one_to_one() -> None:
    encoded, notes = Numeric("age", 20, 60).encode(["20", "40", "60", "30"])
    np.testing.assert_allclose(encoded[:, 0], [-1, 0, 1, -0.5])
    assert notes == ()


def test_useless_numbers_become_the_middle_and_far_ones_the_ends() -> None:
    encoded, notes = Numeric("age", 20, 60).encode(["", "?", "nan", "inf", "-inf", "1e400", "abc", "7", "1000"])
    np.testing.assert_array_equal(encoded[:, 0], [0, 0, 0, 0, 0, 0, 0, -1, 1])
    assert notes == (
        "age: 7 missing values set to the middle of the range.",
        "age: 2 values clipped to the range 20 to 60.",
    )


@pytest.mark.parametrize(
    ("transform", "low", "high", "value", "expected"),
    [
        ("log", 1.0, 100.0, "10", 0.0),
        ("log1p", 0.0, 99.0, "9", 0.0),
        ("symlog", -9.0, 9.0, "0", 0.0),
        ("symlog", -99.0, 99.0, "-9", -0.5),
    ],
)
def test_transforms(transform, low, high, value, expected) -> None:
    encoded, _ = Numeric("x", low, high, transform).encode([value, str(low), str(high)])
    np.testing.assert_allclose(encoded[:, 0], [expected, -1, 1], atol=1e-12)


@given(
    values=st.lists(st.text(max_size=60) | st.floats().map(str), max_size=8),
    transform=st.sampled_from(sorted(TRANSFORMS)),
)
@settings(max_examples=200, deadline=None)
def test_any_text_gives_a_number_in_range_and_no_warning(values, transform) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoded, _ = Numeric("x", 0.5, 1e6, transform).encode(values)
    assert encoded.shape == (len(values), 1)
    assert np.isfinite(encoded).all()
    assert (np.abs(encoded) <= 1 + 1e-12).all()


@given(values=st.lists(st.sampled_from(["1", "2.5", "-1e3", "1_0", " 7", "nan", "inf", "١"]), max_size=6))
@settings(max_examples=100, deadline=None)
def test_a_number_does_not_depend_on_its_neighbours(values) -> None:
    """Whether the column is converted at once or, next to a word, one by one."""
    alone = [numbers([value])[0] for value in values]
    np.testing.assert_array_equal(numbers(values), alone)
    np.testing.assert_array_equal(numbers([*values, "word"])[:-1], alone)


def test_a_very_long_text_is_no_number() -> None:
    assert np.isnan(numbers(["1", "x" * 10_000_000])).tolist() == [False, True]


def test_categories_are_columns_of_0_and_1() -> None:
    column = Categorical("job", ("clerk", "nurse"))
    encoded, notes = column.encode(["nurse", "clerk", "pilot", ""])
    assert column.feature_names() == ("job=clerk", "job=nurse", "job=other")
    np.testing.assert_array_equal(encoded, [[0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 0, 1]])
    assert notes == ('job: 2 missing or undeclared values are "other".',)


def test_without_other_an_unknown_value_is_0_everywhere() -> None:
    column = Categorical("job", ("clerk",), other=False)
    np.testing.assert_array_equal(column.encode(["clerk", "pilot"])[0], [[1], [0]])
    np.testing.assert_array_equal(column.codes(["clerk", "pilot"]), [0, -1])


def test_a_declared_other_is_used() -> None:
    column = Categorical("race", ("white", "other"))
    assert column.all_values == ("white", "other")
    np.testing.assert_array_equal(column.codes(["other", "unheard of"]), [1, 1])


def test_columns_stand_side_by_side() -> None:
    table = {"age": ["0", "10"], "job": ["a", "b"]}
    features, names, _ = encode_all([Numeric("age", 0, 10), Categorical("job", ("a", "b"), False)], table.get, 2)
    assert names == ("age", "job=a", "job=b")
    np.testing.assert_array_equal(features, [[-1, 1, 0], [1, 0, 1]])
    assert features.dtype == np.float32


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Numeric("x", 1, 1), r"range of x must be two finite numbers, the smaller first; found '1 to 1'"),
        (lambda: Numeric("x", 0, float("inf")), "range of x must be two finite numbers"),
        (lambda: Numeric("x", -1e308, 1e308), "range of x must be two finite numbers"),
        (lambda: Numeric("x", 0, 1, "log"), "range of x must be above 0 for log"),
        (lambda: Numeric("x", 0, 1, "logg"), "transform of x must be one of .*Did you mean 'log'"),
        (lambda: Categorical("x", ("a", "a")), "categories of x must be different"),
        (lambda: Categorical("x", ()), "categories of x must be different"),
    ],
)
def test_bad_declarations_are_refused(make, message) -> None:
    with pytest.raises(InputError, match=message):
        make()
