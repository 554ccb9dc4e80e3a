"""Packs a byte plane whose values lie close together into half as many bytes, before entropy coding.

Exponents of trained weights and high bytes of small differences hardly ever leave a window of 15 values. Two of
them in one byte halve the symbols that the entropy coder must go through, and cost it less than a bit each
where one value is most common. Values outside the window are escaped: the nibble 15, and the value kept apart.
"""

from dataclasses import dataclass

import numpy as np

from holdfast_checkpoint.codec.planes import Plane
from holdfast_checkpoint.codec.sampling import Counts

_ESCAPE = 15
_ESCAPED_AT_MOST = 1 / 8
"""More outside the window than this share, and packing would not pay."""


@dataclass(frozen=True)
class Packed:
    """A packed plane of 2 n values."""

    lowest: int
    """Of the window's values; they wrap around after 255."""
    pairs: Plane
    """n bytes: the first value of each pair in the low half."""
    escaped: Plane
    """The values outside the window, in order."""


def window(counts: Counts) -> int | None:
    """Return the lowest value of the best window for values counted like this, None if none is good."""
    sums = np.convolve(np.concatenate([counts, counts[: _ESCAPE - 1]]), np.ones(_ESCAPE, np.int64), "valid")
    lowest = int(sums.argmax())
    return lowest if sums[lowest] >= (1 - _ESCAPED_AT_MOST) * counts.sum() else None


def pack(plane: Plane, lowest: int) -> Packed | None:
    """Pack ``plane``, which has an even size, with this window; None if too many values lie outside."""
    nibbles = plane - np.uint8(lowest)
    places = np.flatnonzero(nibbles >= _ESCAPE)
    if places.size > _ESCAPED_AT_MOST * plane.size:
        return None
    nibbles[places] = _ESCAPE
    pairs = nibbles.view("<u2")
    return Packed(lowest, (pairs | (pairs >> 4)).astype(np.uint8), plane[places])


def unpack(packed: Packed) -> Plane:
    """Undo :func:`pack`. Raises ValueError if the escaped values are not as many as the escapes."""
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
