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


_LAYOUTS = {
    "float64": Layout(8, True),
    "float32": Layout(4, True),
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


def split(elements: Elements) -> list[Plane]:
    """Return the planes, highest first. Overwrites ``elements``."""
    planes: list[Plane] = []
    for _ in range(elements.itemsize):
        # A cast and a shift run several times as fast as copying every n-th byte.
        planes.insert(0, elements.astype(np.uint8))
        np.right_shift(elements, 8, out=elements)
    return planes


def join(planes: list[Plane]) -> Elements:
    """Undo :func:`split`."""
    elements: Elements = planes[0].astype(f"<u{len(planes)}")
    for plane in planes[1:]:
        np.left_shift(elements, 8, out=elements)
        np.bitwise_or(elements, plane, out=elements)
    return elements


def rotate_left(elements: Elements) -> Elements:
    """Return the elements with the highest bit moved to the lowest place."""
    rotated: Elements = np.left_shift(elements, 1)
    np.bitwise_or(rotated, np.right_shift(elements, 8 * elements.itemsize - 1), out=rotated)
    return rotated


def rotate_right(elements: Elements) -> Elements:
    """Undo :func:`rotate_left`."""
    rotated: Elements = np.right_shift(elements, 1)
    np.bitwise_or(rotated, np.left_shift(elements, 8 * elements.itemsize - 1), out=rotated)
    return rotated
