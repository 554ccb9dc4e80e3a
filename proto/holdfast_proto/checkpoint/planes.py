"""Cuts an array of numbers into byte planes: all highest bytes, then all second bytes, and so on.

The highest bytes of trained weights take few values, the lowest ones are noise; apart, the first compress well
and the others need not be tried for long. Floating-point numbers are first rotated left by one bit, which puts
the sign last and the exponent of a float32 or bfloat16 into one plane (the idea of ZipNN: Hershcovitch et al.,
"ZipNN: Lossless Compression for AI Models", 2024).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Elements = NDArray[np.unsignedinteger[Any]]
"""The bits of numbers, as unsigned integers of the same width."""
Plane = NDArray[np.uint8]
"""One byte of every element."""


@dataclass(frozen=True)
class Layout:
    """What the codec has to know of a dtype."""

    width: int
    """Bytes of an element, which is the number of planes."""
    is_float: bool
    """Whether an element has a sign and an exponent in front."""

    @property
    def bits(self) -> np.dtype[np.unsignedinteger[Any]]:
        """The unsigned integers that hold the elements' bits."""
        return np.dtype(f"<u{self.width}")


FLOAT32 = Layout(4, True)

_LAYOUTS = {
    "float64": Layout(8, True),
    "float32": FLOAT32,
    "float16": Layout(2, True),
    "bfloat16": Layout(2, True),
    "complex128": Layout(8, True),
    "complex64": Layout(4, True),
    "int64": Layout(8, False),
    "int32": Layout(4, False),
    "int16": Layout(2, False),
    "uint64": Layout(8, False),
    "uint32": Layout(4, False),
    "uint16": Layout(2, False),
}


def layout_of(dtype: str) -> Layout:
    """Return the layout of a dtype, spelt as in a TensorEntry; of others, one-byte floats among them, plain bytes."""
    return _LAYOUTS.get(dtype, Layout(1, dtype.startswith("float8")))


def split(elements: Elements, *, is_float: bool) -> list[Plane]:
    """Return the planes, highest first; of floating-point numbers (``is_float``) those of the rotated ones."""
    planes = np.empty((elements.itemsize, elements.size), np.uint8)
    *upper, lowest = planes
    for place, plane in enumerate(reversed(upper), start=1):
        # A shift and a cast in one pass: several times as fast as copying every n-th byte.
        np.right_shift(elements, 8 * place - is_float, out=plane, casting="unsafe")
    np.copyto(lowest, elements, casting="unsafe")
    if is_float:
        np.add(lowest, lowest, out=lowest)
        is_negative = elements.view(f"<i{elements.itemsize}") < 0
        np.bitwise_or(lowest, is_negative, out=lowest)
    return list(planes)


def join(planes: list[Plane]) -> Elements:
    """Undo :func:`split`. What it returns may be a plane itself."""
    parts: list[Elements] = list(planes)
    while len(parts) > 1:
        # Neighbours first: the narrower the numbers, the more of them a core handles at once.
        parts = [_join_two(high, low) for high, low in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def _join_two(high: Elements, low: Elements) -> Elements:
    joined: Elements = high.astype(f"<u{2 * high.itemsize}")
    np.left_shift(joined, 8 * high.itemsize, out=joined)
    np.bitwise_or(joined, low, out=joined)
    return joined


def rotate_right(elements: Elements, into: Elements) -> None:
    """Fill ``into`` with the elements whose lowest bit is moved to the highest place."""
    # Once to ``into``: that is memory, the others lie in a cache.
    np.bitwise_or(np.left_shift(elements, 8 * elements.itemsize - 1), np.right_shift(elements, 1), out=into)
