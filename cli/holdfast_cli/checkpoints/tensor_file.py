"""New files in the safetensors format, mapped into memory: https://github.com/huggingface/safetensors.

Eight bytes with the size of the header, the header (JSON), the tensors without gaps. The package safetensors reads such
files, but it writes only tensors that are complete in memory. These are filled in place, so that a file of any size
takes no memory of its own.
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
    "float8_e8m0fnu": "F8_E8M0", "int16": "I16", "uint16": "U16", "float16": "F16", "bfloat16": "BF16", "int32": "I32",
    "uint32": "U32", "float32": "F32", "int64": "I64", "uint64": "U64", "float64": "F64", "complex64": "C64",
}  # fmt: skip
_METADATA = "__metadata__"
_HEADER_BYTES = 8


class TensorFileError(ValueError):
    """A file is not in the format, or a tensor has no place in it; the message completes "FILE ..."."""


@dataclass(frozen=True)
class TensorForm:
    """A tensor to be put into a file."""

    name: str
    dtype: str
    """Name as torch prints it, without the prefix ``torch.``."""
    shape: tuple[int, ...]

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as torch's object."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.shape) * self.torch_dtype.itemsize


def create(
    path: Path, forms: Iterable[TensorForm], metadata: Mapping[str, str], *, is_scratch: bool = False
) -> Mapping[str, torch.Tensor]:
    """Create a file of zeros and return its tensors by name. Writing to the tensors writes to the file.

    Raises OSError, with ENOSPC before anything is written, or TensorFileError for a dtype that the format does not
    know; a file that ``is_scratch``, for this process alone, takes any.
    """
    header: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
    starts: dict[TensorForm, int] = {}
    end = 0
    # The widest first, so that every tensor is aligned to its elements.
    for form in sorted(forms, key=lambda form: -form.torch_dtype.itemsize):
        if form.dtype not in _DTYPES and not is_scratch:
            raise TensorFileError(f"cannot hold {form.name}: safetensors has no dtype {form.dtype}")
        starts[form], end = end, end + form.nbytes
        header[form.name] = {
            "dtype": _DTYPES.get(form.dtype, form.dtype),
            "shape": list(form.shape),
            "data_offsets": [starts[form], end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    data = _HEADER_BYTES + len(text)
    with path.open("x+b") as file:
        os.posix_fallocate(file.fileno(), 0, data + end)
        file.write(len(text).to_bytes(_HEADER_BYTES, "little") + text)
        file.flush()
        mapping = mmap.mmap(file.fileno(), 0)
    return {form.name: _tensor(mapping, data + start, form) for form, start in starts.items()}


def _tensor(mapping: mmap.mmap, offset: int, form: TensorForm) -> torch.Tensor:
    if form.nbytes == 0:
        return torch.empty(form.shape, dtype=form.torch_dtype)
    flat = torch.frombuffer(mapping, dtype=form.torch_dtype, count=math.prod(form.shape), offset=offset)
    return flat.view(form.shape)
