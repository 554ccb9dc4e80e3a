"""Reads the header of a safetensors file, and checks that its tensors fill the file."""

import json
from collections.abc import Iterator
from typing import Any

from holdfast_checkpoint.guard.damage import DamagedFileError, printable
from holdfast_checkpoint.guard.finite_values import tensor_bytes
from holdfast_checkpoint.guard.paced_reading import PacedFile
from holdfast_checkpoint.guard.tensor_place import TensorPlace, roles

LARGEST_HEADER_BYTES = 100_000_000
"""The limit of the package safetensors."""

_DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu", "I16": "int16", "U16": "uint16", "F16": "float16", "BF16": "bfloat16", "I32": "int32",
    "U32": "uint32", "F32": "float32", "I64": "int64", "U64": "uint64", "F64": "float64", "C64": "complex64",
}  # fmt: skip
_SIZE_BYTES = 8


def places_in(file: PacedFile) -> Iterator[TensorPlace]:
    """Yield each tensor. Raises DamagedFileError if the header or a length is wrong."""
    if file.size < _SIZE_BYTES:
        raise DamagedFileError(f"it has {file.size} bytes, and no header")
    length = int.from_bytes(file.read(0, _SIZE_BYTES), "little")
    if length > LARGEST_HEADER_BYTES:
        raise DamagedFileError("it does not begin with the size of a safetensors header")
    header = _header(file.read(_SIZE_BYTES, length))
    header.pop("__metadata__", None)
    begin = _SIZE_BYTES + length
    try:
        tensors = sorted((_tensor(name, fields) for name, fields in header.items()), key=lambda each: each[3:])
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DamagedFileError("its header describes a tensor that cannot be") from None
    end = 0
    for name, dtype, shape, start, stop in tensors:
        if start != end or (dtype and tensor_bytes(dtype, shape) != stop - start):
            raise DamagedFileError(f"its header gives tensor {printable(name)} bytes that cannot be its own")
        end = stop
    if begin + end != file.size:
        raise DamagedFileError(f"it has {file.size} bytes, and its header describes {begin + end}")
    kinds = roles({name: dtype for name, dtype, *_ in tensors}, file.path.name)
    for name, dtype, shape, start, stop in tensors:
        yield TensorPlace(
            name, kinds[name], dtype, shape, file.path, begin + start, stop - start, is_readable=bool(dtype)
        )


def _header(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise DamagedFileError("its header is no JSON") from None
    if not isinstance(found, dict):
        raise DamagedFileError("its header is no JSON object")
    return found


def _tensor(name: str, fields: dict[str, Any]) -> tuple[str, str, tuple[int, ...], int, int]:
    """Return name, dtype, shape, and the first byte and the end in the data."""
    start, stop = fields["data_offsets"]
    numbers = (*fields["shape"], start, stop)
    if not all(isinstance(number, int) and number >= 0 for number in numbers) or start > stop:
        raise ValueError(name)
    return name, _DTYPES.get(fields["dtype"], ""), tuple(fields["shape"]), start, stop
