"""The codec "byte-planes": lossless, and made for the states of a training run.

A tensor is cut into chunks of CHUNK_BYTES raw bytes; the last one may be shorter. They are stored one after the other,
each in the format of ``chunk.py``. Chunks gain three things: the working set stays in a core's caches, each part of a
tensor gets the coding that suits it, and a reader can skip to the chunks that it needs. The descriptor is a
:class:`ChunkTable`, which says where they are. Memory: a few chunks, whatever the size of the tensor.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast_checkpoint.codec.chunk import decode_chunk, encode_chunk, is_difference
from holdfast_checkpoint.codec.codec_registry import Payload, PayloadError, Previous, RawBytes
from holdfast_checkpoint.codec.plane_coder import PlaneEncoder
from holdfast_checkpoint.codec.planes import ElementFormat, format_of

CHUNK_BYTES = 2 << 20
"""Raw bytes of a chunk. A multiple of every element's width, so that no element is cut in two; small enough for a chunk
and its planes to stay in a core's caches."""
MOST_CHUNK_BYTES = 64 << 20
"""Raw bytes of the largest chunk that is read. A descriptor out of a damaged index may claim any size."""
_MOST_HEADER_BYTES = 1 << 10
"""More than what a chunk that does not compress takes in addition to its raw bytes."""


@dataclass(frozen=True)
class ChunkTable:
    """Sizes of a tensor's chunks, from which their places in the payload follow."""

    chunk_bytes: int
    """Raw bytes of each chunk but the last."""
    stored_bytes: tuple[int, ...]
    """Stored size of each chunk, in order."""
    needs_previous: bool
    """Whether at least one chunk is stored as a difference to the earlier state."""

    @classmethod
    def from_json(cls, descriptor: dict[str, Any]) -> "ChunkTable":
        """Invert :meth:`to_json`. Raises PayloadError for what it cannot have made."""
        try:
            table = cls(**{**descriptor, "stored_bytes": tuple(descriptor["stored_bytes"])})
        except (LookupError, TypeError) as error:
            raise PayloadError(f"has another descriptor ({error!r})") from None
        if type(table.chunk_bytes) is not int or not 0 < table.chunk_bytes <= MOST_CHUNK_BYTES:
            raise PayloadError(f"has chunks of {table.chunk_bytes!r:.40} bytes, and {MOST_CHUNK_BYTES} are the most")
        most_bytes = table.chunk_bytes + _MOST_HEADER_BYTES
        if not all(type(size) is int and 0 <= size <= most_bytes for size in table.stored_bytes):
            raise PayloadError(f"has a stored chunk that is larger than {most_bytes} bytes, or of no size")
        if not isinstance(table.needs_previous, bool):
            raise PayloadError("has a descriptor that does not say whether it is a difference")
        return table

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a JSON object."""
        return {**vars(self), "stored_bytes": list(self.stored_bytes)}

    def chunks(self, first: int, stop: int) -> "ChunkTable":
        """Return the table of the chunks ``first`` to ``stop`` (exclusive) as if they were the whole tensor."""
        return ChunkTable(self.chunk_bytes, self.stored_bytes[first:stop], self.needs_previous)

    def stored_offset(self, chunk: int) -> int:
        """Return the offset of a chunk in the payload, in bytes."""
        return sum(self.stored_bytes[:chunk])


def encode(
    raw: RawBytes,
    dtype: str,
    store: Callable[[bytes | memoryview], None],
    *,
    previous: Previous | None = None,
    decoded: Callable[[memoryview], None] | None = None,
) -> dict[str, Any]:
    """Pass the payload to ``store``, chunk by chunk, and return the descriptor: a ChunkTable as JSON.

    ``dtype`` is spelt as in a TensorEntry; the bytes of an unknown one are coded as numbers of one byte. ``previous``
    holds the raw bytes of an earlier state of the same tensor. A chunk is stored as the difference to it where that is
    likely to be smaller, and then :func:`decode` needs it, too. With ``decoded``, each chunk is decoded before it is
    stored, and the result is passed to ``decoded``. Raises PayloadError if the result is not the chunk again: then a
    core or the memory is damaged, and the checkpoint must not be committed.
    """
    element_format = format_of(dtype)
    encoder = PlaneEncoder()
    stored_bytes: list[int] = []
    needs_previous = False
    scratch = memoryview(bytearray(min(len(raw), CHUNK_BYTES) if decoded is not None else 0))
    for position in range(0, len(raw), CHUNK_BYTES):
        chunk = slice(position, position + CHUNK_BYTES)
        part = raw[chunk]
        before = None if previous is None else previous[chunk]
        stored = encode_chunk(part, element_format, encoder, before)
        if decoded is not None:
            decoded(_checked(stored, part, element_format, scratch, before))
        store(stored)
        stored_bytes.append(len(stored))
        needs_previous |= is_difference(stored)
    return ChunkTable(CHUNK_BYTES, tuple(stored_bytes), needs_previous).to_json()


def needs_previous(descriptor: dict[str, Any]) -> bool:
    """Return whether :func:`decode` needs the earlier state."""
    return ChunkTable.from_json(descriptor).needs_previous


def decode(
    payload: Payload,
    dtype: str,
    descriptor: dict[str, Any],
    nbytes: int,
    into: memoryview | None,
    *,
    previous: Previous | None = None,
) -> Iterator[memoryview]:
    """Yield the ``nbytes`` raw bytes in order, a chunk at a time.

    They are in ``into``, which has that size, or else in a buffer that the next chunk overwrites. To read only some
    chunks, pass their table (:meth:`ChunkTable.chunks`) with the payload, size and buffer of those chunks. Raises
    PayloadError if the payload is not one of :func:`encode`, or if it needs ``previous`` and gets None.
    """
    table = ChunkTable.from_json(descriptor)
    element_format = format_of(dtype)
    starts = range(0, nbytes, table.chunk_bytes)
    if (count := -(-nbytes // table.chunk_bytes)) != len(table.stored_bytes):
        raise PayloadError(f"has {len(table.stored_bytes)} chunks, not {count}")
    buffer = np.empty(min(nbytes, table.chunk_bytes), np.uint8).data if into is None else into
    for start, stored_bytes in zip(starts, table.stored_bytes, strict=True):
        chunk = slice(start, min(start + table.chunk_bytes, nbytes))
        part = buffer[: chunk.stop - start] if into is None else buffer[chunk]
        stored = _read(payload, stored_bytes)
        decode_chunk(stored, element_format, part, None if previous is None else previous[chunk])
        yield part
    if payload.read(1):
        raise PayloadError("is longer than it should be")


def _checked(
    stored: bytes, raw: memoryview, element_format: ElementFormat, scratch: memoryview, previous: memoryview | None
) -> memoryview:
    """Return the chunk decoded again, while it is in the core's caches. Raises PayloadError if it is not ``raw``."""
    into = scratch[: len(raw)]
    decode_chunk(memoryview(stored), element_format, into, previous)
    # Compared as 64-bit words and a rest: as bytes, NaN is equal to itself, and numpy compares in vectors.
    words = len(raw) // 8
    is_same = np.array_equal(np.frombuffer(into, np.uint64, words), np.frombuffer(raw, np.uint64, words))
    if not is_same or into[8 * words :] != raw[8 * words :]:
        raise PayloadError("does not decode to what was encoded")
    return into


def _read(payload: Payload, size: int) -> memoryview:
    """Read exactly ``size`` bytes, in several calls if need be. Raises PayloadError if the payload ends before."""
    found = memoryview(payload.read(size))
    if len(found) == size:
        return found
    parts = bytearray(found)
    while part := payload.read(size - len(parts)):
        parts += part
    if len(parts) < size:
        raise PayloadError("ends too early")
    return memoryview(parts)
