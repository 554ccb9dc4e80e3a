"""The codec "byte-planes": lossless, and made for the states of a training run.

A tensor is cut into chunks of CHUNK_BYTES raw bytes, the last of which may be shorter. They are stored one
after the other, each in the format of ``chunk.py``. The descriptor is a :class:`ChunkTable`, so that some
chunks can be read without the others. Memory: a few chunks, whatever the size of the tensor.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast_checkpoint.codec.chunk import decode_chunk, encode_chunk, is_difference
from holdfast_checkpoint.codec.plane_coder import PlaneEncoder
from holdfast_checkpoint.codec.planes import ElementFormat, format_of
from holdfast_checkpoint.codec.registry import Payload, PayloadError, Previous, RawBytes

CHUNK_BYTES = 2 << 20
"""A multiple of every width; small enough for a chunk and its planes to stay in a core's caches."""


@dataclass(frozen=True)
class ChunkTable:
    """Where the chunks of a tensor lie."""

    chunk_bytes: int
    """Raw bytes of each chunk but the last."""
    stored_bytes: tuple[int, ...]
    """Of each chunk, in order."""
    needs_previous: bool
    """Whether a chunk is stored as its difference to the earlier state."""

    @classmethod
    def from_json(cls, descriptor: dict[str, Any]) -> "ChunkTable":
        """Invert :meth:`to_json`."""
        return cls(**{**descriptor, "stored_bytes": tuple(descriptor["stored_bytes"])})

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON has them."""
        return {**vars(self), "stored_bytes": list(self.stored_bytes)}

    def chunks(self, first: int, stop: int) -> "ChunkTable":
        """Return the table of the chunks ``first`` to ``stop`` (exclusive) as if they were the whole tensor."""
        return ChunkTable(self.chunk_bytes, self.stored_bytes[first:stop], self.needs_previous)

    def stored_offset(self, chunk: int) -> int:
        """Return where a chunk starts in the payload."""
        return sum(self.stored_bytes[:chunk])


def encode(
    raw: RawBytes,
    dtype: str,
    store: Callable[[bytes | memoryview], None],
    *,
    previous: Previous | None = None,
    decoded: Callable[[memoryview], None] | None = None,
) -> dict[str, Any]:
    """Hand the payload to ``store``, chunk by chunk, and return the descriptor: a ChunkTable as JSON.

    ``dtype`` is spelt as in a TensorEntry; of one that is not known, any bytes are coded as they are.
    ``previous`` holds the raw bytes of an earlier state of the same tensor. A chunk is stored as the
    difference to it where that is likely to be smaller, and then :func:`decode` needs it too. With ``decoded``
    each chunk is decoded before it is stored: raises PayloadError if it is not what it was, else tells what it is.
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
    """Whether :func:`decode` needs the earlier state."""
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

    They lie in ``into``, which has that size, or else in a buffer that the next chunk overwrites. To read some
    chunks only, give their table (:meth:`ChunkTable.chunks`) and the payload, sizes and buffers of those alone.
    Raises PayloadError if the payload is not what :func:`encode` has made, or if it needs ``previous``.
    """
    table = ChunkTable.from_json(descriptor)
    element_format = format_of(dtype)
    starts = range(0, nbytes, table.chunk_bytes)
    if len(starts) != len(table.stored_bytes):
        raise PayloadError(f"has {len(table.stored_bytes)} chunks, not {len(starts)}")
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
    """Decode a chunk, while it is in the core's caches. Raises PayloadError if that does not give ``raw``."""
    into = scratch[: len(raw)]
    decode_chunk(memoryview(stored), element_format, into, previous)
    words = len(raw) // 8
    is_same = np.array_equal(np.frombuffer(into, np.uint64, words), np.frombuffer(raw, np.uint64, words))
    if not is_same or into[8 * words :] != raw[8 * words :]:
        raise PayloadError("does not decode to what was encoded")
    return into


def _read(payload: Payload, size: int) -> memoryview:
    """Read exactly ``size`` bytes, which may take several calls."""
    found = memoryview(payload.read(size))
    if len(found) == size:
        return found
    parts = bytearray(found)
    while part := payload.read(size - len(parts)):
        parts += part
    if len(parts) < size:
        raise PayloadError("ends too early")
    return memoryview(parts)
