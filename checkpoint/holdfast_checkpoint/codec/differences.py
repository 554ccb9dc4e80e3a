"""Differences of a tensor to an earlier state of itself, taken between the bits of its numbers.

Weights change little from one checkpoint to the next. The bits of two floating-point numbers of one sign, read as
integers, are as close as the numbers are. So an integer subtraction of the bits gives small numbers, whose high bytes
are nearly all zero and compress to almost nothing.

* The subtraction wraps around, so it is exact for every pair of values, NaNs and changes of sign included.
* The zig-zag code puts the sign into the last bit: 0, -1, 1, -2, ... become 0, 1, 2, 3, ... Otherwise a small negative
  difference would have high bytes of 255 next to the zeros of the positive ones.
* An exclusive-or would be cheaper, but it turns each carry into a run of ones and compresses a little worse.

Arrays are ``Elements``: shape (n,), unsigned integers that hold the bits.
"""

import numpy as np

from holdfast_checkpoint.codec.plane_coder import count, entropy_bits, sample
from holdfast_checkpoint.codec.planes import ElementFormat, Elements, Plane, split

_FRACTION, _LEADING_ONE = 0x7FFFFF, 0x800000
"""Bits of a float32's fraction, and the one in front of it that the format leaves out."""
_WORTHWHILE = 0.97
"""Largest size of a difference, as a share of the plain chunk's, at which it is used. A chunk that is a difference
needs the earlier state to be read, and a gain of less than 3 % is not worth that."""


def subtract(elements: Elements, previous: Elements) -> Elements:
    """Return the zig-zag code of ``elements - previous``."""
    difference: Elements = elements - previous
    # Zig-zag without branches, for signed d: (d << 1) ^ (-1 if d < 0 else 0).
    sign: Elements = np.right_shift(difference, 8 * difference.itemsize - 1)
    np.left_shift(difference, 1, out=difference)
    np.bitwise_xor(difference, np.negative(sign, out=sign), out=difference)
    return difference


def add(difference: Elements, previous: Elements) -> Elements:
    """Return the elements whose :func:`subtract` from ``previous`` gave ``difference``."""
    sign: Elements = np.bitwise_and(difference, 1)
    elements: Elements = np.right_shift(difference, 1)
    np.bitwise_xor(elements, np.negative(sign, out=sign), out=elements)
    np.add(elements, previous, out=elements)
    return elements


def is_smaller(elements: Elements, previous: Elements, element_format: ElementFormat) -> bool:
    """Whether the difference of ``elements`` to ``previous`` is likely to compress better than they do alone."""
    # Judged by the entropy of a sample: to encode both ways and compare would double the cost of a checkpoint.
    now, before = sample(elements), sample(previous)
    alone = _bits(split(now, is_float=element_format.is_float))
    return _bits(split(subtract(now, before), is_float=False)) <= _WORTHWHILE * alone


def _bits(planes: list[Plane]) -> float:
    """Return the bits per element that perfect codes need, one for each byte plane."""
    return sum(entropy_bits(count(plane)) for plane in planes)


def decayed(previous: Elements, lost: int) -> Elements:
    """Return the bits of float32 numbers made smaller by ``lost`` 256ths (0 to 254) of themselves, or nearly so.

    Earlier versions stored differences to such numbers, to predict the moments of an optimizer. This version only reads
    them. The reader has to compute the very same bits, on any processor. So this is integer arithmetic on the bits.
    """
    if not lost:
        return previous
    # A 256th of the significand, times ``lost``, is subtracted from the bits. If the borrow runs into the exponent, the
    # number is made smaller by another amount: the writer took the difference to just that.
    significands = np.bitwise_or(np.bitwise_and(previous, _FRACTION), _LEADING_ONE)
    np.right_shift(significands, 8, out=significands)
    np.multiply(significands, lost, out=significands)
    return np.subtract(previous, significands, out=significands)
