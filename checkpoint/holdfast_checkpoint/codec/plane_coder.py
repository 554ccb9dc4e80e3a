"""Stores a byte plane in one of three ways, chosen from a sample::

    raw       0, then the bytes
    entropy   1, then a zstd frame
    nibbles   2, the window's lowest value (one byte), the stored size of the escaped values (4 bytes, little-endian),
              a zstd frame of the escaped values, then one of the pairs (see below)

zstd serves as an entropy coder here. With so small a hash table it hardly searches for repetitions: it is three times
as fast as level 1, and its output is smaller. Planes of numbers repeat nothing but runs, and short chance matches cost
more bits than they save. The window of 2^15 bytes makes blocks of 32 KiB. Each block has a code of its own, which
pays because parts of a tensor differ; smaller blocks take more time.
"""

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from holdfast_checkpoint.codec.codec_registry import PayloadError
from holdfast_checkpoint.codec.planes import Plane, Words, split

# Packs a byte plane whose values are close together into half as many bytes, before entropy coding.
#
# Exponents of trained weights and high bytes of small differences hardly ever leave a window of 15 values. So a value
# fits into a nibble, half a byte, as its distance from the window's lowest value. Two nibbles in one byte gain twice:
# the entropy coder has half as many symbols to go through, and it codes pairs. A symbol of a Huffman code takes a whole
# bit at least. With two values in a symbol, a value that is most common costs less than one bit.
#
# Values outside the window are escaped: the nibble is 15, and the value itself is stored apart.

# Estimates from a sample how well an array compresses, at a small part of the cost of compressing it.
#
# The encoder has three ways to store a plane, and a choice between differences and plain numbers. To try them all would
# cost much more than to encode once. A sample of 8192 elements of a chunk tells them apart.

_RUNS = 32
_RUN_ELEMENTS = 256
"""Elements of one run of a sample. Parts of a tensor differ, so 32 runs come from all over it; runs and not single
elements, because neighbours share cache lines."""

Counts = NDArray[np.int64]
"""How often each value of a byte occurs: shape (256,)."""


def sample(array: NDArray[Any]) -> NDArray[Any]:
    """Return a copy of 8192 elements of an array of shape (n,), in runs of neighbours; of a small array, all."""
    stride = array.size // _RUNS
    if stride <= _RUN_ELEMENTS:
        return array.copy()
    return array[: _RUNS * stride].reshape(_RUNS, stride)[:, :_RUN_ELEMENTS].ravel()


def count(plane: NDArray[np.uint8]) -> Counts:
    """Return how often each value occurs in a byte plane."""
    return np.bincount(plane, minlength=256)


def entropy_bits(counts: Counts) -> float:
    """Return the bits per byte, 0 to 8, that a perfect code for bytes of these frequencies needs (Shannon, 1948)."""
    shares = counts[counts > 0] / counts.sum()
    return -float(shares @ np.log2(shares))


_ESCAPE = 15
"""Nibble of a value outside the window, and so also the number of values in the window."""
_ESCAPED_AT_MOST = 1 / 8
"""Largest share of values outside the window. With more of them packing does not pay: each costs 12 bits instead of 8
before entropy coding."""


@dataclass(frozen=True)
class Packed:
    """A packed plane of 2 n values."""

    lowest: int
    """Lowest value of the window. Values wrap around: after 255 comes 0."""
    pairs: Plane
    """Nibbles, shape (n,): the first value of each pair in the low half of the byte."""
    escaped: Plane
    """Values outside the window, in their order in the plane."""


def window(counts: Counts) -> int | None:
    """Return the lowest value of the window that covers most, or None if more than an eighth is outside of it.

    ``counts`` has shape (256,): how often each byte value occurs, maybe in a sample only.
    """
    # Small differences of both signs are around 0, so that a window may wrap around from 255: the first 14 counts are
    # appended. A convolution with ones then gives the sums of all 256 windows.
    sums = np.convolve(np.concatenate([counts, counts[: _ESCAPE - 1]]), np.ones(_ESCAPE, np.int64), "valid")
    lowest = int(sums.argmax())
    return lowest if sums[lowest] >= (1 - _ESCAPED_AT_MOST) * counts.sum() else None


def pack(plane: Plane, lowest: int) -> Packed | None:
    """Return ``plane``, which has an even size, packed with this window; None if too many values are outside.

    The window comes from a sample, so this is where the whole plane is judged.
    """
    # The subtraction wraps around as the window does: values inside become 0 to 14, all others 15 or more.
    nibbles = plane - np.uint8(lowest)
    places = np.flatnonzero(nibbles >= _ESCAPE)
    if places.size > _ESCAPED_AT_MOST * plane.size:
        return None
    nibbles[places] = _ESCAPE
    # Two nibbles are one 16-bit word 0x0s0f (f the first, s the second). Shifted by four and combined, its low byte
    # is 0xsf.
    pairs = nibbles.view("<u2")
    return Packed(lowest, (pairs | (pairs >> 4)).astype(np.uint8), plane[places])


def unpack(packed: Packed) -> Plane:
    """Undo :func:`pack`: return the plane, shape (2 n,). Raises ValueError unless each escape has one value."""
    pairs = packed.pairs.astype("<u2")
    np.bitwise_or(pairs, pairs << 4, out=pairs)
    np.bitwise_and(pairs, 0x0F0F, out=pairs)
    nibbles: Plane = pairs.view(np.uint8)
    places = np.flatnonzero(nibbles == _ESCAPE)
    if places.size != packed.escaped.size:
        raise ValueError(f"{packed.escaped.size} values for {places.size} escapes")
    np.add(nibbles, np.uint8(packed.lowest), out=nibbles)
    nibbles[places] = packed.escaped
    return nibbles


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
