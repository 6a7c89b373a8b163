from __future__ import annotations

import pytest

from privfair.cli.ledger import json_number, percent, shown


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (float("inf"), "∞"), (0.0, "0"), (2.9999, "3.000"), (2.9991, "3.000"), (0.100001, "0.1001"),
     (12.3451, "12.35"), (123456.7, "123457"), (0.00012341, "0.0001235")],
)  # fmt: skip
def test_an_epsilon_never_looks_smaller_than_it_is(value, text):
    assert shown(value) == text


@pytest.mark.parametrize(("share", "text"), [(None, "–"), (1.0, "100.0%"), (0.9999, "99.9%"), (-0.25, "-25.0%")])
def test_what_is_left_never_looks_larger_than_it_is(share, text):
    assert percent(share) == text


def test_json_has_no_infinity():
    assert [json_number(v) for v in (None, 1.5, float("inf"), float("-inf"))] == [None, 1.5, "inf", "-inf"]
