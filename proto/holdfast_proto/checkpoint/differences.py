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
    difference: Elements = elements - previous
    sign: Elements = np.right_shift(difference, 8 * difference.itemsize - 1)
    np.left_shift(difference, 1, out=difference)
    np.bitwise_xor(difference, np.negative(sign, out=sign), out=difference)
    return difference


def add(difference: Elements, previous: Elements) -> Elements:
    """Undo :func:`subtract`. Overwrites ``difference``."""
    sign: Elements = np.bitwise_and(difference, 1)
    np.right_shift(difference, 1, out=difference)
    np.bitwise_xor(difference, np.negative(sign, out=sign), out=difference)
    np.add(difference, previous, out=difference)
    return difference


def pays(plain: Elements, elements: Elements, previous: Elements) -> bool:
    """Whether ``elements - previous`` is likely to compress better than ``plain``, which is stored otherwise."""
    difference = subtract(sample(elements), sample(previous))
    return _bits(difference) <= _WORTHWHILE * _bits(sample(plain))


def _bits(elements: Elements) -> float:
    """Return the bits per element that a perfect code of each byte plane for itself needs. Overwrites ``elements``."""
    return sum(entropy_bits(count(plane)) for plane in split(elements))
