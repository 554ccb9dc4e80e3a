"""Cuts an array of numbers into byte planes: all highest bytes, then all second bytes, and so on.

An array of n elements of W bytes becomes W planes of n bytes. The gain: the highest bytes of trained weights take few
values, the lowest ones are noise. In one stream the noise would spoil the statistics that an entropy coder works with.
Apart, the first planes compress well, and the encoder can leave the noise alone.

The planes of floating-point numbers are not cut at byte borders. The first bit of a float32 or bfloat16 is the sign,
which is noise, and the exponent starts behind it and ends in the next byte. So the first plane takes the eight bits
behind the sign, which are the whole exponent of these types. The second plane takes the sign and the seven bits
after those eight. ZipNN rotates the numbers for the same purpose: Hershcovitch et al., "ZipNN: Lossless Compression
for AI Models", 2024.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Elements = NDArray[np.unsignedinteger[Any]]
"""Bits of n numbers as unsigned integers of the same width: shape (n,)."""
Plane = NDArray[np.uint8]
"""One byte of every element: shape (n,)."""
Words = NDArray[np.uint16]
"""Two bytes of every element, little-endian: shape (n,). It stands for two planes that were not taken apart."""

_SIGN, _FRACTION = 0x80, 0x7F
"""Bits of the second plane of floating-point numbers: the sign, and seven bits that follow the first plane's eight."""
_FRACTION_BITS = 7


@dataclass(frozen=True)
class ElementFormat:
    """How the codec cuts the elements of a dtype."""

    width: int
    """Bytes of an element, and so the number of planes."""
    is_float: bool
    """Whether an element of two or more bytes begins with a sign and an exponent."""

    @property
    def bits(self) -> np.dtype[np.unsignedinteger[Any]]:
        """Numpy's dtype of the elements: unsigned integers, little-endian."""
        return np.dtype(f"<u{self.width}")


FLOAT32 = ElementFormat(4, True)

_FORMATS = {
    "float64": ElementFormat(8, True),
    "float32": FLOAT32,
    "float16": ElementFormat(2, True),
    "bfloat16": ElementFormat(2, True),
    # Real and imaginary parts are elements of their own.
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
    """Return the planes of n elements, highest first: W arrays of shape (n,), or W - 2 with ``without_words``.

    ``without_words`` leaves out the two lowest planes, which :func:`lowest_words` returns in one piece.
    """
    width = elements.itemsize
    # One allocation for all planes; each row is contiguous, as the entropy coder wants it.
    planes = np.empty((width - 2 * without_words, elements.size), np.uint8)
    if is_float:
        head = elements if width == 2 else _cast(elements, 8 * (width - 2), np.empty(elements.size, "<u2"))
        _split_head(head, *planes[:2])
    for number in range(2 if is_float else 0, len(planes)):
        _cast(elements, 8 * (width - 1 - number), planes[number])
    return list(planes)


def lowest_words(elements: Elements) -> Words:
    """Return the two lowest bytes of every element: the last two planes, interleaved."""
    return elements.astype("<u2")


def join(parts: Iterable[Plane | Words], into: Elements, *, is_float: bool) -> None:
    """Undo :func:`split`: fill ``into``, shape (n,), from its planes, highest first.

    Words may take the place of any two planes.
    """
    remaining = iter(parts)
    if into.itemsize == 1:
        into[:] = next(remaining)
        return
    words = [_words(remaining, _join_head if is_float else _join_two)]
    words += [_words(remaining, _join_two) for _ in range(into.itemsize // 2 - 1)]
    # From here on everything is two bytes wide. The lowest words are widened to whole elements, with zeros above them:
    # one pass over contiguous memory, which is quicker than a strided write. Only the higher words need strides.
    into[:] = words.pop()
    for place, higher in enumerate(reversed(words), start=1):
        into.view("<u2")[place :: into.itemsize // 2] = higher


def _words(parts: Iterator[Plane | Words], join_two: Callable[[Plane, Plane], Words]) -> Words:
    """Return the next two planes as words."""
    part = next(parts)
    return part.view("<u2") if part.itemsize > 1 else join_two(part.view(np.uint8), next(parts).view(np.uint8))


def _cast(elements: Elements, shift: int, into: Elements) -> Elements:
    """Fill ``into`` with the lowest bits of the shifted elements; return it."""
    # Shift and narrow in one pass over the elements: several times as fast as copying every W-th byte.
    if shift:
        np.right_shift(elements, shift, out=into, casting="unsafe")
    else:
        np.copyto(into, elements, casting="unsafe")
    return into


def _split_head(head: Elements, exponent: Plane, rest: Plane) -> None:
    # The head is the highest two bytes: s eeeeeeee fffffff. The narrowing cast drops the sign from the first plane.
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
