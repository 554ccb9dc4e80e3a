"""Differences to an earlier state of the same tensor: integer subtraction of the bits, small numbers either way.

Subtraction wraps around, so it is exact for every pair of values, NaNs included. The zig-zag code puts the
sign last (0, -1, 1, -2, ... become 0, 1, 2, 3, ...), so that a small difference of either sign has high bytes of
zero. An exclusive-or would turn each carry into a run of ones and compresses a little worse.
"""

import numpy as np

from holdfast_checkpoint.codec.planes import ElementFormat, Elements, Plane, split
from holdfast_checkpoint.codec.sampling import count, entropy_bits, sample

_FRACTION, _LEADING_ONE = 0x7FFFFF, 0x800000
_WORTHWHILE = 0.97
"""A difference is worth it if it needs at most this fraction of the bits; for less gain a chunk is not tied to an
earlier state."""


def subtract(elements: Elements, previous: Elements) -> Elements:
    """Return the zig-zag code of ``elements - previous``."""
    difference: Elements = elements - previous
    sign: Elements = np.right_shift(difference, 8 * difference.itemsize - 1)
    np.left_shift(difference, 1, out=difference)
    np.bitwise_xor(difference, np.negative(sign, out=sign), out=difference)
    return difference


def add(difference: Elements, previous: Elements) -> Elements:
    """Undo :func:`subtract`."""
    sign: Elements = np.bitwise_and(difference, 1)
    elements: Elements = np.right_shift(difference, 1)
    np.bitwise_xor(elements, np.negative(sign, out=sign), out=elements)
    np.add(elements, previous, out=elements)
    return elements


def is_smaller(elements: Elements, previous: Elements, element_format: ElementFormat) -> bool:
    """Whether the difference of ``elements`` to ``previous`` is likely to compress better than they do alone."""
    now, before = sample(elements), sample(previous)
    alone = _bits(split(now, is_float=element_format.is_float))
    return _bits(split(subtract(now, before), is_float=False)) <= _WORTHWHILE * alone


def decayed(previous: Elements, lost: int) -> Elements:
    """Return the bits of float32 numbers made smaller by ``lost`` 256ths (0 to 254) of themselves, or nearly so.

    Earlier versions stored differences to such numbers, to predict the moments of an optimizer; this one only reads
    them. In integers and not floating point, which must give the same wherever it is computed.
    """
    if not lost:
        return previous
    significands = np.bitwise_or(np.bitwise_and(previous, _FRACTION), _LEADING_ONE)
    np.right_shift(significands, 8, out=significands)
    np.multiply(significands, lost, out=significands)
    return np.subtract(previous, significands, out=significands)


def _bits(planes: list[Plane]) -> float:
    """Return the bits per element that a perfect code of each byte plane for itself needs."""
    return sum(entropy_bits(count(plane)) for plane in planes)
