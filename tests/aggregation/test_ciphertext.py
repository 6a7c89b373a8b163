from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privfair.secure_aggregation.ciphertext import Ciphertext, Damaged, Header

HEADER = Header("bfv", "ab" * 16, 5000, 2, additions=3, weight=0.5, encoding="cd" * 8)
WHOLE = Ciphertext(HEADER, (b"first chunk", b"second"))


def test_bytes_there_and_back():
    assert Ciphertext.from_bytes(WHOLE.to_bytes()) == WHOLE
    assert (HEADER.length, HEADER.scheme, HEADER.key_id, HEADER.additions) == (5000, "bfv", "ab" * 16, 3)


def test_every_truncation_is_named():
    data = WHOLE.to_bytes()
    for end in range(len(data)):
        with pytest.raises(Damaged, match="reply of Ann must"):
            Ciphertext.from_bytes(data[:end], "reply of Ann")


def test_every_flipped_byte_is_named():
    data = WHOLE.to_bytes()
    for i in range(len(data)):
        with pytest.raises(Damaged):
            Ciphertext.from_bytes(data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :])


@given(st.binary(max_size=300))
def test_garbage_is_named(data):
    with pytest.raises(Damaged):
        Ciphertext.from_bytes(data)
    with pytest.raises(Damaged):
        Ciphertext.from_bytes(HEADER.to_bytes() + data)


def test_texts():
    data = WHOLE.to_bytes()
    with pytest.raises(Damaged, match=r"must be whole; found 'cut short in chunk 2 of 2'\. Send it again\."):
        Ciphertext.from_bytes(data[:-1])
    with pytest.raises(Damaged, match="must start like an encrypted vector of privfair; found 'nothing'"):
        Ciphertext.from_bytes(b"")
    with pytest.raises(Damaged, match="must end after its last chunk"):
        Ciphertext.from_bytes(data + b"x")
    with pytest.raises(Damaged, match="must be bytes; found 'NoneType'"):
        Ciphertext.from_bytes(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("weight", [-1e-300, -0.5, -1.0, float("nan"), float("inf")])
def test_a_weight_is_a_finite_number_of_0_or_above(weight):
    """A negative one would make room in the sum of weights for contributions that are too heavy."""
    forged = Ciphertext(replace(HEADER, weight=weight), WHOLE.chunks).to_bytes()
    with pytest.raises(Damaged, match="must have a finite weight, 0 or above"):
        Ciphertext.from_bytes(forged)


def test_chunks_cannot_change_places():
    data = WHOLE.to_bytes()
    head = len(HEADER.to_bytes())
    first, second = data[head : head + 20 + 11], data[head + 20 + 11 :]
    assert data == data[:head] + first + second
    with pytest.raises(Damaged, match="wrong checksum in chunk 1 of 2"):
        Ciphertext.from_bytes(data[:head] + second + first)


def test_the_error_survives_a_worker_process():
    error = Damaged("reply of Ann", "must be whole", "cut", "Send it again.")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is Damaged
    assert str(again) == str(error)
