"""Differences to an earlier state of the same tensor: integer subtraction of the bits, small numbers either way.

Subtraction wraps around, so it is exact for every pair of values, NaNs included. The zig-zag code puts the
sign last (0, -1, 1, -2, ... become 0, 1, 2, 3, ...), so that a small difference of either sign has high bytes of
zero. An exclusive-or would turn each carry into a run of ones and compresses a little worse.
"""

import numpy as np

from holdfast_checkpoint.codec.planes import FLOAT32, ElementFormat, Elements, Plane, split
from holdfast_checkpoint.codec.sampling import count, entropy_bits, sample

_WORTHWHILE = 0.97
"""A difference is worth it if it needs at most this fraction of the bits; for less gain a chunk is not tied to an
earlier state."""

_FRACTION, _LEADING_ONE = 0x7FFFFF, 0x800000
_MOST_LOST = 254
_SHARE_BELOW = 0.95
"""Of the numbers: what has gained since has lost less than what has merely decayed."""


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


def best_loss(elements: Elements, previous: Elements, element_format: ElementFormat) -> int | None:
    """Return how much of ``previous`` is to be taken for lost (:func:`decayed`) for the smallest difference.

    None if no difference is likely to compress better than ``elements`` by themselves. Only float32 numbers decay.
    """
    now, before = sample(elements), sample(previous)
    losses = {0, typical_loss(now, before)} if element_format == FLOAT32 else {0}
    bits = {loss: _bits(split(subtract(now, decayed(before, loss)), is_float=False)) for loss in losses}
    best = min(bits, key=bits.__getitem__)
    return best if bits[best] <= _WORTHWHILE * _bits(split(now, is_float=element_format.is_float)) else None


def _bits(planes: list[Plane]) -> float:
    """Return the bits per element that a perfect code of each byte plane for itself needs."""
    return sum(entropy_bits(count(plane)) for plane in planes)


def decayed(previous: Elements, lost: int) -> Elements:
    """Return the bits of numbers made smaller by ``lost`` 256ths (0 to 254) of themselves, or nearly so.

    In integers and not floating point, which must give the same wherever it is computed.
    """
    if not lost:
        return previous
    significands = np.bitwise_or(np.bitwise_and(previous, _FRACTION), _LEADING_ONE)
    np.right_shift(significands, 8, out=significands)
    np.multiply(significands, lost, out=significands)
    return np.subtract(previous, significands, out=significands)


def typical_loss(elements: Elements, previous: Elements) -> int:
    """Return how many 256ths of themselves numbers have lost that have merely decayed; 0 if they have grown."""
    comparable = np.bitwise_xor(elements, previous) <= _FRACTION  # of the same exponent
    elements, previous = elements[comparable], previous[comparable]
    if not elements.size:
        return 0
    significands = np.bitwise_or(np.bitwise_and(previous, _FRACTION), _LEADING_ONE)
    lost = (previous - elements).view(np.int32) * 256.0 / significands
    place = int(_SHARE_BELOW * lost.size)
    return int(np.clip(np.ceil(np.partition(lost, place)[place]), 0, _MOST_LOST))
