"""The codec "raw": stores the bytes as they are. It serves when compressing would take cores from training."""

from collections.abc import Callable, Iterator

from holdfast_checkpoint.codec.codec_registry import Descriptor, Payload, PayloadError, Previous, RawBytes

_PIECE_BYTES = 256 << 10
"""Bytes that are handled together. They stay in a core's own cache while they are copied and digested."""


def encode(
    raw: RawBytes,
    dtype: str,
    store: Callable[[bytes | memoryview], None],
    *,
    previous: Previous | None = None,
    decoded: Callable[[memoryview], None] | None = None,
) -> None:
    """Pass the bytes to ``store``; there is no descriptor. See TensorCodec."""
    del dtype, previous
    for position in range(0, len(raw), _PIECE_BYTES):
        piece = raw[position : position + _PIECE_BYTES]
        store(piece)
        if decoded is not None:
            decoded(piece)


def needs_previous(descriptor: Descriptor) -> bool:
    """Return False. See TensorCodec."""
    del descriptor
    return False


def decode(
    payload: Payload,
    dtype: str,
    descriptor: Descriptor,
    nbytes: int,
    into: memoryview | None,
    *,
    previous: Previous | None = None,
) -> Iterator[memoryview]:
    """Yield the bytes. See TensorCodec."""
    del dtype, descriptor, previous
    position = 0
    while position < nbytes:
        piece = payload.read(min(_PIECE_BYTES, nbytes - position))
        if not piece:
            raise PayloadError("ends too early")
        part = memoryview(piece)
        if into is not None:
            part = into[position : position + len(piece)]
            part[:] = piece
        yield part
        position += len(piece)
    if payload.read(1):
        raise PayloadError("is longer than it should be")
