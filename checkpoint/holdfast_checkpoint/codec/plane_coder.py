"""Stores a byte plane in one of three ways, chosen from a sample::

    raw       0, then the bytes
    entropy   1, then a zstd frame
    nibbles   2, the window's lowest value (one byte), the stored size of the escaped values (4 bytes, little-endian),
              a zstd frame of the escaped values, then one of the pairs (see ``nibbles.py``)

zstd serves as an entropy coder here. With so small a hash table it hardly searches for repetitions: it is three times
as fast as level 1, and its output is smaller. Planes of numbers repeat nothing but runs, and short chance matches cost
more bits than they save. The window of 2^15 bytes makes blocks of 32 KiB. Each block has a code of its own, which
pays because parts of a tensor differ; smaller blocks take more time.
"""

import struct

import numpy as np
import zstandard

from holdfast_checkpoint.codec.nibbles import Packed, pack, unpack, window
from holdfast_checkpoint.codec.planes import Plane, Words, split
from holdfast_checkpoint.codec.registry import PayloadError
from holdfast_checkpoint.codec.sampling import Counts, count, entropy_bits, sample

_RAW, _ENTROPY, _NIBBLES = 0, 1, 2
_NIBBLES_HEADER = struct.Struct("<BBI")

_NOISE_BITS = 7.85
"""Entropy, in bits per byte, above which a plane is noise. zstd stores a block as it is unless compressing saves a
64th, which needs an entropy below 7.875 bits; a sample shows a little less than there is."""
_ZEROS_IN_NOISE = 1 / 128
"""Share of zero bytes above which a plane is not noise: twice what noise has. More zeros come from rows of zeros, which
a sample can miss and which compress to nothing."""

Stored = list[bytes | memoryview]
"""A stored plane in pieces, to be joined once with the whole chunk."""

_ENTROPY_CODER = zstandard.ZstdCompressionParameters(
    strategy=zstandard.STRATEGY_FAST, window_log=15, hash_log=6, min_match=7, target_length=0
)


class PlaneEncoder:
    """Encodes planes, one at a time. It keeps zstd's working memory from one plane to the next."""

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdCompressor(compression_params=_ENTROPY_CODER)

    def encode(self, plane: Plane) -> Stored:
        """Return the stored plane, which may be a view of ``plane``."""
        counts = count(sample(plane))
        if _is_noise(plane, [counts]):
            return [bytes([_RAW]), plane.data]
        lowest = window(counts)
        packed = pack(plane, lowest) if lowest is not None and plane.size % 2 == 0 else None
        if packed is not None:
            escaped = self._zstd.compress(packed.escaped.data)
            header = _NIBBLES_HEADER.pack(_NIBBLES, packed.lowest, len(escaped))
            return [header, escaped, self._zstd.compress(packed.pairs.data)]
        frame = self._zstd.compress(plane.data)
        return [bytes([_ENTROPY]), frame] if len(frame) < plane.size else [bytes([_RAW]), plane.data]


def are_noise(words: Words) -> bool:
    """Return whether both planes of ``words`` are noise: then they need not even be taken apart."""
    return _is_noise(words.view(np.uint8), [count(plane) for plane in split(sample(words), is_float=False)])


def _is_noise(stored: Plane, counts: list[Counts]) -> bool:
    """Return whether ``stored`` is noise; ``counts`` are those of a sample, for each plane in it.

    The cheap test on the sample comes first. Counting the zeros of everything is a fast pass, but a pass.
    """
    if min(entropy_bits(of_plane) for of_plane in counts) <= _NOISE_BITS:
        return False
    zeros = stored.size - int(np.count_nonzero(stored))
    return zeros <= _ZEROS_IN_NOISE * stored.size


def decode_plane(stored: memoryview, size: int) -> Plane:
    """Return a plane of ``size`` bytes, which may be a view of ``stored``.

    Raises PayloadError if ``stored`` is damaged or of a kind that this version does not know.
    """
    kind = stored[0] if stored else None
    if kind == _RAW:
        plane = np.frombuffer(stored, np.uint8, offset=1)
    elif kind == _ENTROPY:
        plane = _decompress(stored[1:], at_most=size)
    elif kind == _NIBBLES and len(stored) >= _NIBBLES_HEADER.size:
        plane = _decode_nibbles(stored, size)
    else:
        raise PayloadError(f"has a plane of kind {kind} and {len(stored)} bytes, which this version does not know")
    if plane.size != size:
        raise PayloadError(f"has a plane of {plane.size} bytes, not {size}")
    return plane


def _decode_nibbles(stored: memoryview, size: int) -> Plane:
    _, lowest, escaped_bytes = _NIBBLES_HEADER.unpack_from(stored)
    start, middle = _NIBBLES_HEADER.size, _NIBBLES_HEADER.size + escaped_bytes
    escaped = _decompress(stored[start:middle], at_most=size)
    pairs = _decompress(stored[middle:], at_most=size)
    try:
        return unpack(Packed(lowest, pairs, escaped))
    except ValueError as error:
        raise PayloadError(f"has a plane whose escaped values do not fit ({error})") from error


def _decompress(frame: memoryview, *, at_most: int) -> Plane:
    try:
        # A damaged frame may claim any size, and decompress() would reserve it.
        if not 0 <= zstandard.frame_content_size(frame) <= at_most:
            raise PayloadError(f"has a frame of more than {at_most} bytes")
        return np.frombuffer(zstandard.ZstdDecompressor().decompress(frame), np.uint8)
    except zstandard.ZstdError as error:
        raise PayloadError(f"does not decompress ({error})") from error
