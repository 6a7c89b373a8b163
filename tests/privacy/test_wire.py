"""Replies as bytes and back."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from accountant.errors import InputError
from privfair.federated.codec import decode, encode
from privfair.federated.messages import Counts, Embeddings, Evaluation, Measures, Reply, Scores, Update

FLOATS = arrays.arrays(np.float64, st.integers(0, 12))
WHOLE = arrays.arrays(np.int64, st.integers(1, 6))
TABLES = arrays.arrays(np.int64, st.tuples(st.integers(1, 4), st.just(2), st.just(2)))
REPLIES = st.one_of(
    st.builds(Counts, st.integers(-(2**62), 2**62), WHOLE),
    st.builds(lambda cells: Scores(tuple(cells)), st.lists(FLOATS, min_size=1, max_size=12)),
    st.builds(Update, st.binary(max_size=200)),
    st.builds(Embeddings, st.binary(max_size=200)),
    st.builds(Measures, st.dictionaries(st.sampled_from(["loss", "confusion", "group_losses"]), FLOATS, min_size=1)),
    st.builds(lambda tables: Evaluation(tuple(tables)), st.lists(TABLES, min_size=1, max_size=3)),
)


def fields(reply: Reply) -> list[Any]:
    match reply:
        case Counts():
            return [reply.records, reply.cells]
        case Scores():
            return list(reply.cells)
        case Update() | Embeddings():
            return [reply.contribution]
        case Measures():
            return [x for name in sorted(reply.values) for x in (name, reply.values[name])]
        case Evaluation():
            return list(reply.confusion)


@settings(max_examples=150, deadline=None)
@given(reply=REPLIES)
def test_there_and_back(reply: Reply) -> None:
    again = decode(encode(reply))
    assert type(again) is type(reply)
    for one, other in zip(fields(reply), fields(again), strict=True):
        np.testing.assert_array_equal(one, other)
        if isinstance(one, np.ndarray):
            assert one.dtype == other.dtype
    assert encode(again) == encode(reply)  # byte for byte: what is sent again after a crash


def test_more_cells_than_digits_would_sort() -> None:
    reply = Scores(tuple(np.array([float(i)]) for i in range(1200)))
    again = decode(encode(reply))
    assert isinstance(again, Scores)
    np.testing.assert_array_equal(np.concatenate(again.cells), np.arange(1200.0))


@settings(max_examples=150, deadline=None)
@given(reply=REPLIES, data=st.data())
def test_truncated_bytes_are_an_input_error(reply: Reply, data: st.DataObject) -> None:
    message = encode(reply)
    with pytest.raises(InputError, match=r"message must be a (whole reply|reply of a known kind)"):
        decode(message[: data.draw(st.integers(0, len(message) - 1))])


@settings(max_examples=200, deadline=None)
@given(garbage=st.binary(max_size=300))
def test_garbage_is_an_input_error(garbage: bytes) -> None:
    with pytest.raises(InputError, match="message must be"):
        decode(garbage)


@settings(max_examples=150, deadline=None)
@given(reply=REPLIES, place=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_a_changed_byte_gives_a_reply_or_an_input_error(reply: Reply, place: int, flip: int) -> None:
    """Whatever comes: nothing but `InputError` is raised."""
    message = bytearray(encode(reply))
    message[place % len(message)] ^= flip
    with suppress(InputError):
        assert isinstance(decode(bytes(message)), Reply)


@pytest.mark.parametrize("wrong", [None, {"records": 3}, 7, b"bytes"])
def test_what_is_no_reply_is_refused_by_name(wrong: Any) -> None:
    with pytest.raises(InputError, match="reply"):
        encode(wrong)
