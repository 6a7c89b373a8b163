from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accountant.errors import InputError
from privfair.secure_aggregation import MODULI, FixedPoint

CODE = FixedPoint(range=2.0, weight_sum=1.0, contributors=4, modulus=MODULI["bfv"])


@st.composite
def codes(draw):
    """A code and weights within it."""
    contributors = draw(st.integers(1, 50))
    weights = draw(st.lists(st.floats(0, 1e3), min_size=contributors, max_size=contributors))
    weight_sum = max(float(np.sum(weights)), 1e-3)
    range_ = draw(st.floats(1e-6, 1e6))
    return FixedPoint(range_, weight_sum, contributors, draw(st.sampled_from(sorted(MODULI.values())))), weights


@given(codes())
def test_the_extreme_corner_never_wraps(case):
    code, weights = case
    values = np.array([np.inf, -np.inf, code.range, -1e308])
    total = sum(code.encode(values, weight) for weight in weights)
    assert np.abs(total).max() <= (code.modulus - 1) // 2


def test_the_corner_is_nearly_reached():
    """The scale wastes less than a thousandth of the modulus, so the test above tests something."""
    total = sum(CODE.encode(np.array([9.0]), 0.25) for _ in range(4))
    assert total[0] > 0.999 * (CODE.modulus - 1) / 2


def test_rounding_of_many_contributors_is_counted():
    """Values chosen so that every contributor rounds up by nearly a half."""
    code = FixedPoint(1.0, 2.0**18, 2**20, MODULI["bfv"])
    weight = 2.0**-2
    up = code.encode(np.array([1.0]), weight)[0]
    assert up * 2**20 <= (code.modulus - 1) // 2


@given(codes(), st.integers(0, 2**32 - 1))
def test_decoding_is_within_half_a_step_for_each_contributor(case, seed):
    code, weights = case
    rng = np.random.default_rng(seed)
    vectors = [rng.uniform(-code.range, code.range, 20) for _ in weights]
    decoded = code.decode(sum(code.encode(v, w) for v, w in zip(vectors, weights, strict=True)))
    for i in range(20):
        exact = sum(Fraction(float(v[i])) * Fraction(w) for v, w in zip(vectors, weights, strict=True))
        # float64 itself: the product with weight · scale and the final division, each 2⁻⁵² of the full sum or less
        slack = 4 * 2.0**-52 * code.range * code.weight_sum
        assert abs(float(exact - Fraction(float(decoded[i])))) <= code.max_error + slack


def test_data_never_raise():
    found = CODE.encode(np.array([np.nan, np.inf, -np.inf, 5.0, -5.0, 1.0]), 0.5)
    top = CODE.encode(np.array([2.0]), 0.5)[0]
    assert found.dtype == np.int64
    assert found[:5].tolist() == [0, top, -top, top, -top]
    assert found[5] == round(0.5 * CODE.scale)


@pytest.mark.parametrize("weight", [-1.0, np.nan, np.inf, "a", True])
def test_a_weight_is_a_finite_number_from_0(weight):
    with pytest.raises(InputError, match="weight must be"):
        CODE.encode(np.zeros(1), weight)


def test_a_weight_beyond_the_sum_is_refused():
    with pytest.raises(InputError, match=r"weight must be at most weight_sum = 1; found 1\.1"):
        CODE.encode(np.zeros(1), 1.1)


def test_no_useful_scale_is_refused_with_the_remedy():
    with pytest.raises(InputError, match=r"must resolve range/1024 or better.*shares that sum to 1"):
        FixedPoint(1.0, 1e6, 10, MODULI["bfv"])
    with pytest.raises(InputError, match="or fewer contributors"):
        FixedPoint(1.0, 1.0, 2**30, MODULI["bfv"])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"range": 0.0}, "range must be above 0"),
        ({"range": np.nan}, "range must be finite"),
        ({"range": 1e300}, "range must be a number of ordinary size"),
        ({"weight_sum": -1.0}, "weight_sum must be above 0"),
        ({"contributors": 0}, "contributors must be a whole number, at least 1; found 0"),
        ({"contributors": 2.5}, "contributors must be a whole number"),
        ({"modulus": 2**60}, r"modulus must be at most 2\*\*53"),
    ],
)
def test_other_values_that_make_no_code(change, text):
    values = {"range": 1.0, "weight_sum": 1.0, "contributors": 2, "modulus": MODULI["bfv"]} | change
    with pytest.raises(InputError, match=text):
        FixedPoint(**values)


def test_the_fingerprint_tells_codes_apart():
    variants = [
        CODE,
        FixedPoint(1.0, 1.0, 4, CODE.modulus),
        FixedPoint(2.0, 2.0, 4, CODE.modulus),
        FixedPoint(2.0, 1.0, 5, CODE.modulus),
        FixedPoint(2.0, 1.0, 4, MODULI["ckks"]),
    ]
    assert len({code.fingerprint for code in variants}) == len(variants)
    assert FixedPoint(2, 1, 4, CODE.modulus).fingerprint == CODE.fingerprint
