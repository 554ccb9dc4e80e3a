"""One zstd frame per tensor."""

from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, cast

import zstandard

from holdfast_proto.checkpoint.codec_registry import Payload, PayloadError, Previous

_LEVEL = 1
_CHUNK_BYTES = 4 << 20
_READ_BYTES = 1 << 20


def encode(raw: memoryview, dtype: str, store: Callable[[bytes], None], *, previous: Previous | None = None) -> None:
    """Store ``raw`` as a frame, whatever its dtype and earlier state; it needs no descriptor."""
    frame = zstandard.ZstdCompressor(level=_LEVEL).compressobj(size=len(raw))
    for position in range(0, len(raw), _CHUNK_BYTES):
        with raw[position : position + _CHUNK_BYTES] as part:
            store(frame.compress(part))
    store(frame.flush())


def needs_previous(descriptor: None) -> bool:
    """Tell that a frame stands for itself."""
    return False


def decode(
    payload: Payload,
    dtype: str,
    descriptor: Any,
    nbytes: int,
    into: memoryview | None,
    *,
    previous: Previous | None = None,
) -> Iterator[memoryview]:
    """Yield the raw bytes in parts of 4 MiB. Raises PayloadError."""
    buffer = memoryview(bytearray(min(nbytes, _CHUNK_BYTES))) if into is None else into
    opened = zstandard.ZstdDecompressor().stream_reader(cast(BinaryIO, payload), _READ_BYTES, closefd=False)
    with opened as stream:
        for offset in range(0, nbytes, _CHUNK_BYTES):
            size = min(_CHUNK_BYTES, nbytes - offset)
            part = buffer[:size] if into is None else buffer[offset : offset + size]
            _fill(stream, part)
            yield part
        if _guarded(lambda: len(stream.read(1))):
            raise PayloadError("is longer than it should be")


def _fill(stream: zstandard.ZstdDecompressionReader, part: memoryview) -> None:
    filled = 0
    while filled < len(part):
        count = _guarded(lambda: stream.readinto(part[filled:]))  # noqa: B023 - called at once
        if count == 0:
            raise PayloadError("ends too early")
        filled += count


def _guarded(read: Callable[[], int]) -> int:
    try:
        return read()
    except zstandard.ZstdError as error:
        raise PayloadError(f"does not decompress ({error})") from error
