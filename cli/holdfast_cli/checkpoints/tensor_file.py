"""Files in the safetensors format, mapped into memory: https://github.com/huggingface/safetensors.

Eight bytes with the size of the header, the header (JSON), the tensors without gaps. Filled in place, so that a
file of any size takes no memory of its own.
"""

import json
import math
import mmap
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

_DTYPES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "float8_e5m2": "F8_E5M2", "float8_e4m3fn": "F8_E4M3",
    "int16": "I16", "uint16": "U16", "float16": "F16", "bfloat16": "BF16", "int32": "I32", "uint32": "U32",
    "float32": "F32", "int64": "I64", "uint64": "U64", "float64": "F64", "complex64": "C64",
}  # fmt: skip
_TORCH_DTYPES = {spelt: getattr(torch, dtype) for dtype, spelt in _DTYPES.items()}
_METADATA = "__metadata__"
_HEADER_BYTES = 8
_LONGEST_HEADER = 100_000_000
"""Bytes; the same limit as in the format's own readers."""


class TensorFileError(ValueError):
    """A file is not in the format, or a tensor has no place in it; the message completes "FILE ..."."""


@dataclass(frozen=True)
class TensorForm:
    """A tensor to be put into a file."""

    name: str
    dtype: str
    """Name as torch prints it, without the prefix ``torch.``."""
    shape: tuple[int, ...]


@dataclass(frozen=True)
class TensorFile:
    """The tensors of a file, which view its mapping."""

    tensors: Mapping[str, torch.Tensor]
    metadata: Mapping[str, str]


def create(
    path: Path, forms: Iterable[TensorForm], metadata: Mapping[str, str], *, is_scratch: bool = False
) -> TensorFile:
    """Create a file of zeros. Writing to the tensors writes to the file.

    Raises OSError, with ENOSPC before anything is written, or TensorFileError for a dtype that the format does not
    know; a file that ``is_scratch``, for this process alone, takes any.
    """
    header: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
    end = 0
    # The widest first, so that every tensor is aligned to its elements.
    for form in sorted(forms, key=lambda form: -getattr(torch, form.dtype).itemsize):
        if form.dtype not in _DTYPES and not is_scratch:
            raise TensorFileError(f"cannot hold {form.name}: safetensors has no dtype {form.dtype}")
        start, end = end, end + _size(form)
        header[form.name] = {
            "dtype": _DTYPES.get(form.dtype, form.dtype),
            "shape": list(form.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("x+b") as file:
        os.posix_fallocate(file.fileno(), 0, _HEADER_BYTES + len(text) + end)
        file.write(len(text).to_bytes(_HEADER_BYTES, "little") + text)
        file.flush()
        return _view(mmap.mmap(file.fileno(), 0))


def open_file(path: Path) -> TensorFile:
    """Map a file; what is written to the tensors does not get into it. Raises OSError or TensorFileError."""
    with path.open("rb") as file:
        try:
            return _view(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        except (ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
            raise TensorFileError(f"is not a safetensors file: {error}") from error


def _view(mapping: mmap.mmap) -> TensorFile:
    size = int.from_bytes(mapping[:_HEADER_BYTES], "little")
    if size > min(_LONGEST_HEADER, len(mapping)):
        raise TensorFileError("is not a safetensors file: its header does not end")
    header = json.loads(mapping[_HEADER_BYTES : _HEADER_BYTES + size])
    metadata = header.pop(_METADATA, {})
    data = _HEADER_BYTES + size
    return TensorFile({name: _tensor(mapping, data, described) for name, described in header.items()}, metadata)


def _tensor(mapping: mmap.mmap, data: int, described: Mapping[str, Any]) -> torch.Tensor:
    dtype, shape = _torch_dtype(described["dtype"]), described["shape"]
    start, stop = described["data_offsets"]
    if start == stop:
        return torch.empty(shape, dtype=dtype)
    stored = torch.frombuffer(mapping, dtype=torch.uint8, count=stop - start, offset=data + start)
    return stored.view(dtype).view(shape)


def _torch_dtype(spelt: str) -> torch.dtype:
    dtype: torch.dtype = _TORCH_DTYPES.get(spelt) or getattr(torch, spelt)
    return dtype


def _size(form: TensorForm) -> int:
    itemsize: int = getattr(torch, form.dtype).itemsize
    return math.prod(form.shape) * itemsize
