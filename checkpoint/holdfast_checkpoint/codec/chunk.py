"""A chunk of a tensor in the codec "byte-planes". It can be decoded without the other chunks.

A chunk is cut into byte planes (``planes.py``): either those of its numbers, or those of their difference to an
earlier state of the tensor (``differences.py``). Each plane is stored by itself (``plane_coder.py``)::

    0   kind (one byte): 0 plain; 1 a difference; 1 + n, of float32 numbers and by earlier versions, a difference to
        the earlier state after a loss of n 256ths (:func:`decayed`)
    1   width: bytes per element, which is the number of planes (one byte)
    2   stored size of each plane, highest first (4 bytes each, little-endian)
    ..  the planes
    ..  if the last plane's size is 0: instead of the two lowest planes, two bytes of every element (little-endian)
    ..  raw bytes that do not fill an element

The case of the two lowest planes is common: in float32 weights they are noise, and then to take the bytes apart and to
join them again would be most of the work, for nothing.
"""

import struct
from collections.abc import Iterator

import numpy as np

from holdfast_checkpoint.codec.codec_registry import PayloadError
from holdfast_checkpoint.codec.differences import add, decayed, is_smaller, subtract
from holdfast_checkpoint.codec.plane_coder import PlaneEncoder, Stored, are_noise, decode_plane
from holdfast_checkpoint.codec.planes import FLOAT32, ElementFormat, Elements, Plane, Words, join, lowest_words, split

_PLAIN, _DIFFERENCE = 0, 1


def encode_chunk(
    raw: memoryview, element_format: ElementFormat, encoder: PlaneEncoder, previous: memoryview | None = None
) -> bytes:
    """Return the stored form of ``raw``. ``previous``, an earlier state of the same size, is used if that pays."""
    elements = _elements(raw, element_format)
    before = None if previous is None else _elements(previous, element_format)
    if before is None or not is_smaller(elements, before, element_format):
        kind, stored = _PLAIN, _encode_planes(elements, encoder, is_float=element_format.is_float)
    else:
        # The zig-zag code has no exponent in front, so its planes are cut at byte borders (``is_float``).
        kind, stored = _DIFFERENCE, _encode_planes(subtract(elements, before), encoder, is_float=False)
    sizes = [sum(len(piece) for piece in pieces) for pieces in stored]
    header = _header_format(element_format).pack(kind, element_format.width, *sizes)
    return b"".join([header, *(piece for pieces in stored for piece in pieces), raw[elements.nbytes :]])


def decode_chunk(
    stored: memoryview, element_format: ElementFormat, into: memoryview, previous: memoryview | None = None
) -> None:
    """Undo :func:`encode_chunk`: fill ``into``, which has the size of the raw chunk.

    Raises PayloadError if ``stored`` does not decode to that size, or needs ``previous`` and gets None.
    """
    elements = _elements(into, element_format)
    kind, sizes = _read_header(stored, element_format)
    tail_bytes = len(into) - elements.nbytes
    position = _header_format(element_format).size
    if position + sum(sizes) + tail_bytes != len(stored):
        raise PayloadError(f"has a chunk of {len(stored)} bytes, which is not what its header says")
    planes = _decode_planes(stored[position : position + sum(sizes)], sizes, elements.size)
    if kind == _PLAIN:
        join(planes, elements, is_float=element_format.is_float)
    elif previous is None:
        raise PayloadError("is stored as the difference to an earlier state, which is not there")
    else:
        difference = np.empty_like(elements)
        join(planes, difference, is_float=False)
        elements[:] = add(difference, decayed(_elements(previous, element_format), kind - _DIFFERENCE))
    into[elements.nbytes :] = stored[position + sum(sizes) :]


def is_difference(stored: bytes) -> bool:
    """Return whether a stored chunk needs the earlier state."""
    return stored[0] != _PLAIN


def _encode_planes(elements: Elements, encoder: PlaneEncoder, *, is_float: bool) -> list[Stored]:
    """Return each plane as it is stored. If the two lowest are noise: both as words, then an empty plane."""
    if elements.itemsize <= 2:
        return [encoder.encode(plane) for plane in split(elements, is_float=is_float)]
    stored = [encoder.encode(plane) for plane in split(elements, is_float=is_float, without_words=True)]
    words = lowest_words(elements)
    if are_noise(words):
        return [*stored, [words.view(np.uint8).data], []]
    return stored + [encoder.encode(plane) for plane in split(words, is_float=False)]


def _decode_planes(stored: memoryview, sizes: list[int], elements: int) -> Iterator[Plane | Words]:
    """Yield the planes of ``elements`` numbers, or words instead of the last two. Raises PayloadError."""
    *_, last = sizes
    start = 0
    for size in sizes if last else sizes[:-2]:
        yield decode_plane(stored[start : start + size], elements)
        start += size
    if not last:
        if len(stored) - start != elements * np.dtype(np.uint16).itemsize:
            raise PayloadError(f"has {len(stored) - start} bytes of words, not {2 * elements}")
        yield np.frombuffer(stored, "<u2", offset=start)


def _elements(raw: memoryview, element_format: ElementFormat) -> Elements:
    """Return a view of the whole elements of ``raw``: shape (bytes // width,)."""
    return np.frombuffer(raw, element_format.bits, len(raw) // element_format.width)


def _header_format(element_format: ElementFormat) -> struct.Struct:
    return struct.Struct(f"<BB{element_format.width}I")


def _read_header(stored: memoryview, element_format: ElementFormat) -> tuple[int, list[int]]:
    """Return the kind of a chunk and the stored sizes of its planes."""
    header = _header_format(element_format)
    if len(stored) < header.size:
        raise PayloadError("has a chunk that ends too early")
    kind, width, *sizes = header.unpack_from(stored)
    if width != element_format.width or (kind > _DIFFERENCE and element_format != FLOAT32):
        raise PayloadError(f"has a chunk of kind {kind} and width {width}, which does not fit its dtype")
    return kind, sizes
