"""Packs a byte plane whose values are close together into half as many bytes, before entropy coding.

Exponents of trained weights and high bytes of small differences hardly ever leave a window of 15 values. So a value
fits into a nibble, half a byte, as its distance from the window's lowest value. Two nibbles in one byte gain twice:
the entropy coder has half as many symbols to go through, and it codes pairs. A symbol of a Huffman code takes a whole
bit at least. With two values in a symbol, a value that is most common costs less than one bit.

Values outside the window are escaped: the nibble is 15, and the value itself is stored apart.
"""

from dataclasses import dataclass

import numpy as np

from holdfast_checkpoint.codec.planes import Plane
from holdfast_checkpoint.codec.sampling import Counts

_ESCAPE = 15
"""Nibble of a value outside the window, and so also the number of values in the window."""
_ESCAPED_AT_MOST = 1 / 8
"""Largest share of values outside the window. With more of them packing does not pay: each costs 12 bits instead of 8
before entropy coding."""


@dataclass(frozen=True)
class Packed:
    """A packed plane of 2 n values."""

    lowest: int
    """Lowest value of the window. Values wrap around: after 255 comes 0."""
    pairs: Plane
    """Nibbles, shape (n,): the first value of each pair in the low half of the byte."""
    escaped: Plane
    """Values outside the window, in their order in the plane."""


def window(counts: Counts) -> int | None:
    """Return the lowest value of the window that covers most, or None if more than an eighth is outside of it.

    ``counts`` has shape (256,): how often each byte value occurs, maybe in a sample only.
    """
    # Small differences of both signs are around 0, so that a window may wrap around from 255: the first 14 counts are
    # appended. A convolution with ones then gives the sums of all 256 windows.
    sums = np.convolve(np.concatenate([counts, counts[: _ESCAPE - 1]]), np.ones(_ESCAPE, np.int64), "valid")
    lowest = int(sums.argmax())
    return lowest if sums[lowest] >= (1 - _ESCAPED_AT_MOST) * counts.sum() else None


def pack(plane: Plane, lowest: int) -> Packed | None:
    """Return ``plane``, which has an even size, packed with this window; None if too many values are outside.

    The window comes from a sample, so this is where the whole plane is judged.
    """
    # The subtraction wraps around as the window does: values inside become 0 to 14, all others 15 or more.
    nibbles = plane - np.uint8(lowest)
    places = np.flatnonzero(nibbles >= _ESCAPE)
    if places.size > _ESCAPED_AT_MOST * plane.size:
        return None
    nibbles[places] = _ESCAPE
    # Two nibbles are one 16-bit word 0x0s0f (f the first, s the second). Shifted by four and combined, its low byte
    # is 0xsf.
    pairs = nibbles.view("<u2")
    return Packed(lowest, (pairs | (pairs >> 4)).astype(np.uint8), plane[places])


def unpack(packed: Packed) -> Plane:
    """Undo :func:`pack`: return the plane, shape (2 n,). Raises ValueError unless each escape has one value."""
    pairs = packed.pairs.astype("<u2")
    np.bitwise_or(pairs, pairs << 4, out=pairs)
    np.bitwise_and(pairs, 0x0F0F, out=pairs)
    nibbles: Plane = pairs.view(np.uint8)
    places = np.flatnonzero(nibbles == _ESCAPE)
    if places.size != packed.escaped.size:
        raise ValueError(f"{packed.escaped.size} values for {places.size} escapes")
    np.add(nibbles, np.uint8(packed.lowest), out=nibbles)
    nibbles[places] = packed.escaped
    return nibbles
