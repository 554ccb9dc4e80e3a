"""Ratio and speed of three codecs on the tensors of a checkpoint: Holdfast's, plain zstd and ZipNN.

They run on one thread. Rates are raw megabytes per second of CPU time. The best of several rounds counts, because the
noise of other processes is not the codec's cost. Every decoded byte is compared.
"""

import functools
import importlib
import importlib.util
import io
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import zstandard
from torch import Tensor, uint8

from holdfast_checkpoint.codec import byte_planes

MISSING = "missing"


@dataclass(frozen=True)
class Blob:
    """The bytes of one tensor, and those of an earlier state if the codec may use them."""

    raw: memoryview
    dtype: str
    previous: memoryview | None = None


@dataclass(frozen=True)
class Figures:
    """How well a codec did on a case."""

    ratio: float
    """Raw size over stored size."""
    encode_mb_s: float
    decode_mb_s: float


@dataclass(frozen=True)
class Contender:
    """A codec. ``size`` returns the number of bytes of an encoded blob."""

    encode: Callable[[Blob], Any]
    decode: Callable[[Blob, Any], memoryview]
    size: Callable[[Any], int]


def make_cases(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> dict[str, list[Blob]]:
    """Return the blobs of each case, made from the states of two steps. A state is one tensor for each kind."""
    new, old = ({kind: raw_bytes(tensor) for kind, tensor in state.items()} for state in (after, before))
    adam = [kind for kind in new if kind != "bf16"]
    return {
        "fp32": [Blob(new["fp32"], "float32")],
        "bf16": [Blob(new["bf16"], "bfloat16")],
        "adam": [Blob(new[kind], "float32") for kind in adam],
        "delta_bf16": [Blob(new["bf16"], "bfloat16", old["bf16"])],
        "delta_all": [Blob(new[kind], "float32", old[kind]) for kind in adam],
    }


def raw_bytes(tensor: Tensor) -> memoryview:
    """Return a view of a contiguous tensor's memory."""
    array: Any = tensor.view(uint8).numpy()
    return memoryview(array)


def holdfast() -> Contender:
    def encode(blob: Blob) -> tuple[bytes, dict[str, Any]]:
        pieces: list[bytes | memoryview] = []
        descriptor = byte_planes.encode(blob.raw, blob.dtype, pieces.append, previous=blob.previous)
        return b"".join(pieces), descriptor

    def decode(blob: Blob, encoded: tuple[bytes, dict[str, Any]]) -> memoryview:
        payload, descriptor = encoded
        into = memoryview(bytearray(len(blob.raw)))
        for _ in byte_planes.decode(
            io.BytesIO(payload), blob.dtype, descriptor, len(blob.raw), into, previous=blob.previous
        ):
            pass
        return into

    return Contender(encode, decode, lambda encoded: len(encoded[0]))


def zstd_1() -> Contender:
    compressor, decompressor = zstandard.ZstdCompressor(level=1), zstandard.ZstdDecompressor()
    return Contender(
        encode=lambda blob: compressor.compress(blob.raw),
        decode=lambda _, encoded: memoryview(decompressor.decompress(encoded)),
        size=len,
    )


def zipnn() -> Contender | None:
    """Return ZipNN (`pip install zipnn`), or None if it is not installed."""
    if importlib.util.find_spec("zipnn") is None:
        return None
    make = functools.partial(importlib.import_module("zipnn").ZipNN, input_format="byte", threads=1)
    return Contender(
        encode=lambda blob: make(bytearray_dtype=blob.dtype).compress(bytearray(blob.raw)),  # ZipNN works in place
        decode=lambda blob, encoded: memoryview(make(bytearray_dtype=blob.dtype).decompress(encoded)),
        size=len,
    )


def measure(contender: Contender, blobs: list[Blob], *, rounds: int) -> Figures:
    """Encode, decode and compare. Raises AssertionError if a byte differs."""
    raw_bytes = sum(len(blob.raw) for blob in blobs)
    encode_s = decode_s = float("inf")
    stored_bytes = 0
    for _ in range(rounds):
        start_s = time.process_time()
        encoded = [contender.encode(blob) for blob in blobs]
        encode_s = min(encode_s, time.process_time() - start_s)
        start_s = time.process_time()
        decoded = [contender.decode(blob, one) for blob, one in zip(blobs, encoded, strict=True)]
        decode_s = min(decode_s, time.process_time() - start_s)
        assert all(one == blob.raw for one, blob in zip(decoded, blobs, strict=True))
        stored_bytes = sum(map(contender.size, encoded))
    return Figures(
        round(raw_bytes / stored_bytes, 4), round(raw_bytes / encode_s / 1e6), round(raw_bytes / decode_s / 1e6)
    )


def measure_all(cases: dict[str, list[Blob]], *, rounds: int) -> dict[str, dict[str, Any]]:
    """Return case -> contender -> figures. Only Holdfast has the delta cases: the others use no earlier state."""
    contenders = {"holdfast": holdfast(), "zstd_1": zstd_1(), "zipnn": zipnn()}
    found: dict[str, dict[str, Any]] = {}
    for case, blobs in cases.items():
        taking_part = {"holdfast": contenders["holdfast"]} if blobs[0].previous is not None else contenders
        found[case] = {
            name: MISSING if contender is None else asdict(measure(contender, blobs, rounds=rounds))
            for name, contender in taking_part.items()
        }
    return found
