import io
import random

import pytest

from holdfast_checkpoint.codec import raw as raw_codec
from holdfast_checkpoint.codec.codec_registry import PayloadError

PIECE = raw_codec._PIECE_BYTES


def encoded(raw: bytes) -> bytes:
    stored: list[bytes | memoryview] = []
    decoded: list[bytes] = []
    raw_codec.encode(memoryview(raw), "float32", stored.append, decoded=lambda part: decoded.append(bytes(part)))
    assert stored == decoded
    return b"".join(stored)


@pytest.mark.parametrize("nbytes", [0, 1, PIECE - 1, PIECE, 2 * PIECE + 3])
@pytest.mark.parametrize("in_place", [True, False])
def test_bytes_are_stored_as_they_are_and_come_back(nbytes: int, in_place: bool) -> None:
    raw = random.Random(nbytes).randbytes(nbytes)
    payload = encoded(raw)
    assert payload == raw
    into = memoryview(bytearray(nbytes)) if in_place else None
    assert b"".join(raw_codec.decode(io.BytesIO(payload), "float32", None, nbytes, into)) == raw
    assert into is None or into == raw


@pytest.mark.parametrize(("nbytes", "message"), [(9, "ends too early"), (7, "is longer than it should be")])
def test_a_payload_of_another_size_is_refused(nbytes: int, message: str) -> None:
    with pytest.raises(PayloadError, match=message):
        list(raw_codec.decode(io.BytesIO(bytes(8)), "float32", None, nbytes, None))
