"""Standard normals from random bits that cannot be repeated; compiled, so it takes a second to import."""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from scipy.special import erfc

from privfair.mechanisms.entropy import system_words
from privfair.util import FloatArray

_SUMMED = 4
_BLOCK = 1 << 14  # normals at a time: the words stay in the cache
_LAYERS = 256
_EDGE = 3.6541528853610088  # where the tail begins, so that 256 pieces of equal area make up the half bell


def system_normals(size: int) -> FloatArray:
    """Independent N(0, 1) draws, each the sum of four draws by the ziggurat method, divided by 2.

    Marsaglia & Tsang, "The ziggurat method for generating random variables", J. Stat. Software 5(8), 2000; with
    separate bits of a 64-bit word for layer, sign and place (Doornik 2005), so that they are independent. By hand,
    because numpy's own takes its bits from a generator that can be repeated.

    What the sum is for: one draw can be inverted, and the floating-point numbers that a sum "value + draw" cannot
    reach give the value away (Mironov 2012). A sum of several independent draws leaves an attacker only the search
    through what could have been drawn, exponential in their number (Holohan, Braghin 2021, arXiv 2107.10138; Opacus'
    secure_mode adds four for this reason and reckons with 2^159 steps). What it is not: a proof. The ε of Gaussian
    noise is that of real numbers; the law of the rounded floating-point result is not bounded here, and the time a
    draw takes is not covered. Integer noise is exact.
    """
    result = np.empty(size)
    for start in range(0, size, _BLOCK):
        _draw(result[start : start + _BLOCK])
    return result


def _draw(result: FloatArray) -> None:
    """Fill it; what a draw that the words did not suffice for has come to is kept, or long draws would be too rare."""
    done, state = 0, np.zeros(3)
    while done < result.size:
        wanted = result.size - done
        done += _fill(system_words(_SUMMED * wanted + wanted // 4 + 16), _WIDTHS, _HEIGHTS, state, result[done:])


def _layers() -> tuple[FloatArray, FloatArray]:
    """Right ends of the layers, from the widest to 0, and the bell's height there; the first stands for the tail."""
    area = _EDGE * math.exp(-0.5 * _EDGE**2) + math.sqrt(math.pi / 2) * float(erfc(_EDGE / math.sqrt(2)))
    widths = [area / math.exp(-0.5 * _EDGE**2), _EDGE]
    while len(widths) < _LAYERS:
        widths.append(math.sqrt(-2 * math.log(area / widths[-1] + math.exp(-0.5 * widths[-1] ** 2))))
    ends = np.array([*widths, 0.0])
    return ends, np.exp(-0.5 * ends**2)


_WIDTHS, _HEIGHTS = _layers()


@njit(nogil=True, cache=True, error_model="numpy")
def _unit(word):  # type: ignore[no-untyped-def]
    """A number in [0, 1) from the upper 53 bits; the lower ones choose layer and sign."""
    return float(word >> np.uint64(11)) * 2.0**-53


@njit(nogil=True, cache=True, error_model="numpy")
def _fill(words, widths, heights, state, result):  # type: ignore[no-untyped-def]
    """Fill the front of `result` with as many draws as the words allow; how many those are.

    `state`: the sum of the draw that is under way, how many are in it, and the sign if one of them is in the tail.
    """
    used, number = 0, 0
    total, summed, tail = state
    while number < len(result) and used + 2 <= len(words):
        if tail != 0.0:  # exponential draws, until one is below the bell
            beyond = -math.log(1.0 - _unit(words[used])) / _EDGE
            height = -math.log(1.0 - _unit(words[used + 1]))
            used += 2
            if 2.0 * height > beyond * beyond:
                total += tail * (_EDGE + beyond)
                summed += 1.0
                tail = 0.0
        else:
            word = words[used]
            layer = int(word & np.uint64(_LAYERS - 1))
            sign = 1.0 - 2.0 * float((word >> np.uint64(8)) & np.uint64(1))
            z = _unit(word) * widths[layer]
            used += 1
            if z < widths[layer + 1]:
                total += sign * z
                summed += 1.0
            elif layer == 0:
                tail = sign
            else:
                height = heights[layer] + _unit(words[used]) * (heights[layer + 1] - heights[layer])
                used += 1
                if height < math.exp(-0.5 * z * z):
                    total += sign * z
                    summed += 1.0
        if summed == _SUMMED:
            result[number] = total / math.sqrt(_SUMMED)
            number += 1
            total = summed = 0.0
    state[0], state[1], state[2] = total, summed, tail
    return number
