"""Cuts an array of numbers into byte planes: all highest bytes, then all second bytes, and so on.

The highest bytes of trained weights take few values, the lowest ones are noise; apart, the first compress well
and the others need not be tried for long. Of floating-point numbers the sign changes places with the bits behind it,
which puts eight bits of the exponent, all that a float32 or bfloat16 has, into one plane (ZipNN rotates the numbers
for that: Hershcovitch et al., "ZipNN: Lossless Compression for AI Models", 2024).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Elements = NDArray[np.unsignedinteger[Any]]
"""The bits of numbers, as unsigned integers of the same width."""
Plane = NDArray[np.uint8]
"""One byte of every element."""
Words = NDArray[np.uint16]
"""Two bytes of every element: two planes in one."""

_SIGN, _FRACTION = 0x80, 0x7F
"""What the second plane of floating-point numbers holds."""
_FRACTION_BITS = 7


@dataclass(frozen=True)
class ElementFormat:
    """What the codec has to know of a dtype."""

    width: int
    """Bytes of an element, which is the number of planes."""
    is_float: bool
    """Whether an element has a sign and an exponent in front, and more than one byte."""

    @property
    def bits(self) -> np.dtype[np.unsignedinteger[Any]]:
        """The unsigned integers that hold the elements' bits."""
        return np.dtype(f"<u{self.width}")


FLOAT32 = ElementFormat(4, True)

_FORMATS = {
    "float64": ElementFormat(8, True),
    "float32": FLOAT32,
    "float16": ElementFormat(2, True),
    "bfloat16": ElementFormat(2, True),
    "complex128": ElementFormat(8, True),
    "complex64": ElementFormat(4, True),
    "int64": ElementFormat(8, False),
    "int32": ElementFormat(4, False),
    "int16": ElementFormat(2, False),
    "uint64": ElementFormat(8, False),
    "uint32": ElementFormat(4, False),
    "uint16": ElementFormat(2, False),
}


def format_of(dtype: str) -> ElementFormat:
    """Return the format of a dtype, spelt as in a TensorEntry. Any other dtype, one-byte floats included, is bytes."""
    return _FORMATS.get(dtype, ElementFormat(1, False))


def split(elements: Elements, *, is_float: bool, without_words: bool = False) -> list[Plane]:
    """Return the planes, highest first, or all but the two lowest (``without_words``)."""
    width = elements.itemsize
    planes = np.empty((width - 2 * without_words, elements.size), np.uint8)
    if is_float:
        head = elements if width == 2 else _cast(elements, 8 * (width - 2), np.empty(elements.size, "<u2"))
        _split_head(head, *planes[:2])
    for number in range(2 if is_float else 0, len(planes)):
        _cast(elements, 8 * (width - 1 - number), planes[number])
    return list(planes)


def lowest_words(elements: Elements) -> Words:
    """Return the two lowest bytes of every element."""
    return elements.astype("<u2")


def join(parts: Iterable[Plane | Words], into: Elements, *, is_float: bool) -> None:
    """Undo :func:`split`: fill ``into`` from the planes, highest first, of which any two can be words instead."""
    remaining = iter(parts)
    if into.itemsize == 1:
        into[:] = next(remaining)
        return
    words = [_words(remaining, _join_head if is_float else _join_two)]
    words += [_words(remaining, _join_two) for _ in range(into.itemsize // 2 - 1)]
    into[:] = words.pop()  # with zeros above them: quicker than the lowest alone
    for place, higher in enumerate(reversed(words), start=1):
        into.view("<u2")[place :: into.itemsize // 2] = higher


def _words(parts: Iterator[Plane | Words], join_two: Callable[[Plane, Plane], Words]) -> Words:
    """Take the next two planes."""
    part = next(parts)
    return part.view("<u2") if part.itemsize > 1 else join_two(part.view(np.uint8), next(parts).view(np.uint8))


def _cast(elements: Elements, shift: int, into: Elements) -> Elements:
    """Fill ``into`` with the lowest bits of the shifted elements; return it."""
    # In one pass: several times as fast as copying every n-th byte.
    if shift:
        np.right_shift(elements, shift, out=into, casting="unsafe")
    else:
        np.copyto(into, elements, casting="unsafe")
    return into


def _split_head(head: Elements, exponent: Plane, rest: Plane) -> None:
    _cast(head, _FRACTION_BITS, exponent)
    _cast(head, 8, rest)
    np.bitwise_and(rest, _SIGN, out=rest)
    fraction = _cast(head, 0, np.empty_like(rest))
    np.bitwise_and(fraction, _FRACTION, out=fraction)
    np.bitwise_or(rest, fraction, out=rest)


def _join_head(exponent: Plane, rest: Plane) -> Words:
    head: Words = exponent.astype("<u2")
    np.left_shift(head, _FRACTION_BITS, out=head)
    # As a signed number it repeats its sign in all bits above, so also in the highest.
    sign_and_fraction: Words = rest.view(np.int8).astype("<i2").view("<u2")
    np.bitwise_and(sign_and_fraction, _SIGN << 8 | _FRACTION, out=sign_and_fraction)
    np.bitwise_or(head, sign_and_fraction, out=head)
    return head


def _join_two(high: Plane, low: Plane) -> Words:
    joined: Words = high.astype("<u2")
    np.left_shift(joined, 8, out=joined)
    np.bitwise_or(joined, low, out=joined)
    return joined
