"""What can be wrong with bytes that claim to be encrypted numbers."""

from __future__ import annotations

from accountant.errors import InputError


class BadCiphertext(InputError):
    """Bytes that cannot be added or opened; the message says whose, what is wrong and what to do."""


class Damaged(BadCiphertext):
    """Cut short, changed on the way, or something else altogether."""


class WrongScheme(BadCiphertext):
    """Made by another scheme than the keys at hand."""


class WrongKey(BadCiphertext):
    """Made under another public key."""


class WrongLength(BadCiphertext):
    """Not as many values as the others, or as promised."""


class WrongEncoding(BadCiphertext):
    """Numbers coded with another range, weight sum or number of contributors."""


class TooMany(BadCiphertext):
    """More additions, or more weight, than the numbers leave room for."""


class Forged(BadCiphertext):
    """Not the sum of the contributions that it names: the tags in it say so, and nothing of it is opened."""


class TooNoisy(BadCiphertext):
    """The noise has reached the numbers: decryption would give wrong values, so it gives none."""
