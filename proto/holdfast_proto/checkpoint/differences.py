"""Differences to an earlier state of the same tensor: integer subtraction of the bits, small numbers either way.

Subtraction wraps around, so it is exact for every pair of values, NaNs included. The zig-zag code puts the
sign last (0, -1, 1, -2, ... become 0, 1, 2, 3, ...), so that a small difference of either sign has high bytes of
zero. An exclusive-or would turn each carry into a run of ones and compresses a little worse.
"""

import numpy as np

from holdfast_proto.checkpoint.planes import Elements, split
from holdfast_proto.checkpoint.sampling import count, entropy_bits, sample

_WORTHWHILE = 0.97
"""A difference is worth it if it needs at most this fraction of the bits; for less gain a chunk is not tied to an
earlier state."""


def subtract(elements: Elements, previous: Elements) -> Elements:
    """Return the zig-zag code of ``elements - previous``."""
    difference = elements - previous
    sign = _all_bits(difference >> (8 * difference.itemsize - 1))
    np.left_shift(difference, 1, out=difference)
    return np.bitwise_xor(difference, sign, out=difference)


def add(difference: Elements, previous: Elements) -> Elements:
    """Undo :func:`subtract`. Overwrites ``difference``."""
    sign = _all_bits(difference & 1)
    np.right_shift(difference, 1, out=difference)
    np.bitwise_xor(difference, sign, out=difference)
    return np.add(difference, previous, out=difference)


def pays(plain: Elements, elements: Elements, previous: Elements) -> bool:
    """Whether ``elements - previous`` is likely to compress better than ``plain``, the elements as stored without it."""
    difference = subtract(sample(elements), sample(previous))
    return _bits(difference) <= _WORTHWHILE * _bits(sample(plain))


def _all_bits(ones: Elements) -> Elements:
    """Turn each 1 into all bits set, in place."""
    return np.negative(ones, out=ones)


def _bits(elements: Elements) -> float:
    """Return the bits per element that a perfect code of each byte plane for itself needs. Overwrites ``elements``."""
    return sum(entropy_bits(count(plane)) for plane in split(elements))
