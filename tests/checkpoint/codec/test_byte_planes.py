import io
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from holdfast_checkpoint.codec import byte_planes
from holdfast_checkpoint.codec.byte_planes import CHUNK_BYTES, ChunkTable
from holdfast_checkpoint.codec.chunk import decode_chunk
from holdfast_checkpoint.codec.codec_registry import PayloadError
from holdfast_checkpoint.codec.planes import format_of

RANDOM = np.random.default_rng(7)
FLOATS = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex128", "complex64"]
INTEGERS = ["int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"]
DTYPES = [*FLOATS, *INTEGERS]


def as_bytes(array: NDArray[np.generic]) -> memoryview:
    return memoryview(array.tobytes())


def weights(count: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, 0.02, count).astype(np.float32)


def encoded(raw: memoryview, dtype: str, previous: memoryview | None = None) -> tuple[bytes, ChunkTable]:
    pieces: list[bytes | memoryview] = []
    descriptor = byte_planes.encode(raw, dtype, pieces.append, previous=previous)
    return b"".join(pieces), ChunkTable.from_json(json.loads(json.dumps(descriptor)))


def decoded(
    payload: bytes, dtype: str, table: ChunkTable, nbytes: int, previous: memoryview | None = None
) -> memoryview:
    into = memoryview(bytearray(nbytes))
    parts = byte_planes.decode(io.BytesIO(payload), dtype, table.to_json(), nbytes, into, previous=previous)
    assert sum(map(len, parts)) == nbytes
    return into


def expect_back(raw: memoryview, dtype: str, previous: memoryview | None = None) -> int:
    """Check that bytes come back; return how many are stored."""
    payload, table = encoded(raw, dtype, previous)
    assert decoded(payload, dtype, table, len(raw), previous) == raw
    return len(payload)


def contents(kind: str, nbytes: int) -> bytes:
    match kind:
        case "noise":
            return RANDOM.bytes(nbytes)
        case "zeros":
            return bytes(nbytes)
        case "ones":
            return b"\xff" * nbytes
        case "weights":
            return weights(nbytes // 4 + 1).tobytes()[:nbytes]
    raise AssertionError(kind)


@pytest.mark.parametrize("dtype", [*DTYPES, "a dtype of tomorrow"])
@pytest.mark.parametrize("kind", ["noise", "zeros", "ones", "weights"])
@pytest.mark.parametrize("nbytes", [0, 1, 7, 16, 4099, 300_001])
def test_any_bytes_come_back_whatever_their_dtype_and_size(dtype: str, kind: str, nbytes: int) -> None:
    expect_back(memoryview(contents(kind, nbytes)), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("nbytes", [0, 7, 300_001])
def test_differences_to_an_equal_a_near_and_a_foreign_state_come_back(dtype: str, nbytes: int) -> None:
    raw = memoryview(contents("weights", nbytes))
    near = memoryview(bytes(byte ^ (place % 16 == 0) for place, byte in enumerate(raw)))
    for previous in (raw, near, memoryview(contents("noise", nbytes))):
        expect_back(raw, dtype, previous)


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_every_kind_of_nan_infinity_zero_and_subnormal_keeps_its_bits(bits: int) -> None:
    unsigned, exponent_bits = np.dtype(f"u{bits // 8}"), {16: 8, 32: 8, 64: 11}[bits]
    edges = [
        (sign << (bits - 1)) | (exponent << (bits - 1 - exponent_bits)) | mantissa
        for sign in (0, 1)
        for exponent in (0, 1, (1 << exponent_bits) - 1)
        for mantissa in (0, 1, 5, (1 << (bits - 1 - exponent_bits)) - 1)
    ]
    values = RANDOM.permutation(np.repeat(np.array(edges, unsigned), 500))
    dtype = {16: "bfloat16", 32: "float32", 64: "float64"}[bits]
    raw, previous = as_bytes(values), as_bytes(RANDOM.permutation(values))
    for earlier in (None, previous):
        expect_back(raw, dtype, earlier)


def test_exponents_far_outside_the_usual_window_come_back() -> None:
    values = weights(1 << 17)
    values[::300] *= np.float32(1e30)
    values[1::700] = 0
    assert expect_back(as_bytes(values), "float32") < 0.86 * values.nbytes


@pytest.fixture(scope="module")
def long_tensor() -> memoryview:
    """A tensor with three full chunks and one that ends within an element."""
    return memoryview(weights(3 * CHUNK_BYTES // 4 + 1000).tobytes() + b"\x01\x02\x03")


@pytest.mark.parametrize(("first", "stop"), [(0, 1), (1, 3), (3, 4), (2, 2)])
def test_some_chunks_decode_without_the_others(long_tensor: memoryview, first: int, stop: int) -> None:
    payload, table = encoded(long_tensor, "float32")
    wanted = long_tensor[first * CHUNK_BYTES : stop * CHUNK_BYTES]
    stored = payload[table.stored_offset(first) : table.stored_offset(stop)]
    assert decoded(stored, "float32", table.chunks(first, stop), len(wanted)) == wanted


def test_some_chunks_of_a_difference_need_only_that_part_of_the_earlier_state(long_tensor: memoryview) -> None:
    payload, table = encoded(long_tensor, "float32", long_tensor)
    part = long_tensor[CHUNK_BYTES : 2 * CHUNK_BYTES]
    stored = payload[table.stored_offset(1) : table.stored_offset(2)]
    assert decoded(stored, "float32", table.chunks(1, 2), len(part), part) == part


def test_without_a_target_the_chunks_come_one_after_the_other(long_tensor: memoryview) -> None:
    payload, table = encoded(long_tensor, "float32")
    parts = byte_planes.decode(io.BytesIO(payload), "float32", table.to_json(), len(long_tensor), None)
    assert b"".join(bytes(part) for part in parts) == long_tensor


def test_encoding_and_decoding_hold_a_few_chunks_only() -> None:
    raw = memoryview(weights(16 * CHUNK_BYTES // 4).tobytes())
    payload, table = encoded(raw, "float32", raw)
    stored = io.BytesIO(payload)
    tracemalloc.start()
    try:
        byte_planes.encode(raw, "float32", lambda piece: None, previous=raw)
        for _ in byte_planes.decode(stored, "float32", table.to_json(), len(raw), None, previous=raw):
            pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 6 * CHUNK_BYTES


def test_a_difference_is_used_only_where_it_pays() -> None:
    old, new = weights(1 << 18, seed=1), weights(1 << 18, seed=2)
    _, unrelated = encoded(as_bytes(new), "float32", as_bytes(old))
    assert not unrelated.needs_previous
    near = (old * np.float32(1.0001)).astype(np.float32)
    alone, _ = encoded(as_bytes(near), "float32")
    payload, related = encoded(as_bytes(near), "float32", as_bytes(old))
    assert related.needs_previous
    assert len(payload) < 0.8 * len(alone)


def test_a_difference_to_decayed_numbers_that_an_earlier_version_stored_is_read() -> None:
    stored = (Path(__file__).parents[2] / "data" / "before" / "decayed.byte-planes").read_bytes()
    old = np.square(np.arange(1, 8193, dtype=np.float32) * np.float32(1e-4))
    new = (old * np.float32(0.95)).astype(np.float32)
    assert stored[0] > 1  # a loss is named
    into = np.empty_like(new)
    decode_chunk(memoryview(stored), format_of("float32"), memoryview(into).cast("B"), as_bytes(old))
    assert into.tobytes() == new.tobytes()


def test_an_unchanged_tensor_costs_next_to_nothing() -> None:
    raw = as_bytes(weights(1 << 20))
    payload, _ = encoded(raw, "float32", raw)
    assert len(payload) < len(raw) / 500


def test_noise_grows_by_the_headers_alone() -> None:
    raw = memoryview(RANDOM.bytes(CHUNK_BYTES))
    payload, _ = encoded(raw, "float32")
    assert len(payload) <= len(raw) + 32


def bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def test_weights_shrink_to_little_more_than_the_entropy_of_their_exponents() -> None:
    values = weights(1 << 20)
    exponents = (values.view(np.uint32) >> 23).astype(np.uint8)
    shares = np.bincount(exponents, minlength=256) / values.size
    shares = shares[shares > 0]
    exponent_bits = -float(shares @ np.log2(shares))
    for raw, dtype, bits in ((as_bytes(values), "float32", 32), (as_bytes(bfloat16(values)), "bfloat16", 16)):
        payload, _ = encoded(raw, dtype)
        assert 8 * len(payload) / values.size < bits - 8 + 1.03 * exponent_bits


def test_rows_of_zeros_shrink_even_where_a_sample_would_miss_them() -> None:
    values = weights(1 << 19)
    dense, _ = encoded(as_bytes(values), "float32")
    values[20_000:30_000] = 0
    payload, _ = encoded(as_bytes(values), "float32")
    assert len(dense) - len(payload) > 30_000


@pytest.mark.parametrize("zeros", [8, 16, 20])
def test_low_bits_that_are_zero_cost_nothing_next_to_others_that_are_noise(zeros: int) -> None:
    values = weights(1 << 18).view(np.uint32)
    noisy, _ = encoded(as_bytes(values), "float32")
    rounded_bytes = expect_back(as_bytes(values >> zeros << zeros), "float32")
    assert len(noisy) - rounded_bytes > 0.98 * zeros / 8 * values.size


@pytest.fixture
def intact() -> tuple[bytes, ChunkTable, int]:
    raw = as_bytes(weights(5000))
    return *encoded(raw, "float32"), len(raw)


def test_a_payload_that_ends_early_or_late_is_refused(intact: tuple[bytes, ChunkTable, int]) -> None:
    payload, table, nbytes = intact
    with pytest.raises(PayloadError, match="ends too early"):
        decoded(payload[:-1], "float32", table, nbytes)
    with pytest.raises(PayloadError, match="longer than it should be"):
        decoded(payload + b"\0", "float32", table, nbytes)
    with pytest.raises(PayloadError, match="1 chunks, not 2"):
        decoded(payload, "float32", table, CHUNK_BYTES + 4)


def test_a_damaged_payload_is_refused_or_gives_other_bytes_but_never_another_error(
    intact: tuple[bytes, ChunkTable, int],
) -> None:
    payload, table, nbytes = intact
    refused = 0
    for place in [*range(64), *RANDOM.integers(0, len(payload), 300)]:
        broken = bytearray(payload)
        broken[place] ^= 1 << int(RANDOM.integers(8))
        try:
            decoded(bytes(broken), "float32", table, nbytes)
        except PayloadError:
            refused += 1
    assert refused >= 18  # at least the header and the sizes are noticed


def test_the_wrong_dtype_and_a_missing_earlier_state_are_refused() -> None:
    raw = as_bytes(weights(5000))
    payload, table = encoded(raw, "float32", raw)
    with pytest.raises(PayloadError, match="width 4, which does not fit its dtype"):
        decoded(payload, "bfloat16", table, len(raw), raw)
    decay = bytearray(encoded(raw, "uint32", raw)[0])
    decay[0] = 2
    with pytest.raises(PayloadError, match="kind 2 and width 4, which does not fit its dtype"):
        decoded(bytes(decay), "uint32", table, len(raw), raw)
    with pytest.raises(PayloadError, match="the difference to an earlier state, which is not there"):
        decoded(payload, "float32", table, len(raw))
