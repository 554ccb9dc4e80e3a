"""Token ids in files. They are mapped, and never read as a whole."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Literal

import numpy as np

from holdfast_hooks import ConfigurationError
from holdfast_trainer.data.tokenizer import Tokens

_CHUNK_TOKENS = 1 << 20
_START_BYTES, _MOST_HEADER_BYTES = 12, 10_000
"""Bytes up to the end of the header's length; longest header, as in numpy.load."""
_DAMAGE = (ValueError, LookupError, TypeError, ArithmeticError, SyntaxError, EOFError, RecursionError, TokenError)
"""What numpy raises for a damaged header, which it reads as Python's source."""


@dataclass(frozen=True, kw_only=True)
class TokenSpan:
    """Consecutive token ids in a file."""

    path: Path
    dtype: str
    """Data type of an id, by its name in NumPy."""
    offset_bytes: int = 0
    """Offset of the first id in the file, in bytes."""
    count: int
    """Number of ids."""

    def map(self) -> Tokens:
        """Map the ids, read-only, shape [count]."""
        if not self.count:
            return np.empty(0, dtype=self.dtype)  # an empty file cannot be mapped
        return np.memmap(self.path, dtype=self.dtype, mode="r", offset=self.offset_bytes, shape=(self.count,))

    def cut(self, share: float) -> tuple["TokenSpan", "TokenSpan"]:
        """Return the span in two parts. The second is its last ``share``."""
        first = round(self.count * (1 - share))
        end_bytes = self.offset_bytes + first * np.dtype(self.dtype).itemsize
        return (
            TokenSpan(path=self.path, dtype=self.dtype, offset_bytes=self.offset_bytes, count=first),
            TokenSpan(path=self.path, dtype=self.dtype, offset_bytes=end_bytes, count=self.count - first),
        )

    def chunks(self, *, overlap: int = 0) -> Iterator[Tokens]:
        """Yield the ids in chunks of bounded size, each beginning with the last ``overlap`` ids of the one before."""
        tokens = self.map()
        for start in range(0, self.count, _CHUNK_TOKENS):
            yield tokens[max(start - overlap, 0) : start + _CHUNK_TOKENS]


def open_token_file(path: Path, *, setting: str, dtype: Literal["uint16", "uint32"]) -> TokenSpan:
    """Return the ids of a ``*.npy`` file, or of a raw file of ``dtype``.

    Raises ConfigurationError, which begins with ``setting``, unless the file holds whole unsigned integers of 16 or 32
    bits.
    """
    return _open_npy(path, setting) if path.suffix == ".npy" else _open_raw(path, setting, dtype)


def survey(spans: Iterable[TokenSpan]) -> tuple[int, str]:
    """Read all spans. Return the largest id, and the BLAKE2b of the ids of one span after the other, hexadecimal."""
    largest, digest = 0, hashlib.blake2b(digest_size=16)
    for span in spans:
        for chunk in span.chunks():
            largest = max(largest, int(chunk.max()))
            digest.update(chunk.data)
    return largest, digest.hexdigest()


def _open_npy(path: Path, setting: str) -> TokenSpan:
    try:
        _check_header(path)
        tokens = np.lib.format.open_memmap(path, mode="r")
    except _DAMAGE:
        raise ConfigurationError(f"{setting}: not a whole NumPy file: give an undamaged one") from None
    if tokens.ndim != 1 or tokens.dtype not in (np.uint16, np.uint32):
        raise ConfigurationError(
            f"{setting}: holds {tokens.dtype.str} of shape {tokens.shape}: "
            "save the ids as one dimension of native uint16 or uint32"
        )
    return TokenSpan(path=path.absolute(), dtype=tokens.dtype.name, offset_bytes=tokens.offset, count=len(tokens))


def _check_header(path: Path) -> None:
    """Raise ValueError for a header that is longer than numpy reads: numpy takes the memory before it looks."""
    with path.open("rb") as file:
        start = file.read(_START_BYTES)
    if start[6:7] == b"\x01":  # the first version has a length of two bytes
        return
    if int.from_bytes(start[8:], "little") > _MOST_HEADER_BYTES:
        raise ValueError("its header is too long")


def _open_raw(path: Path, setting: str, dtype: str) -> TokenSpan:
    nbytes, width = path.stat().st_size, np.dtype(dtype).itemsize
    if nbytes % width:
        raise ConfigurationError(
            f"{setting}: {nbytes} bytes are no whole number of {dtype}: set data.token_dtype or give an undamaged file"
        )
    return TokenSpan(path=path.absolute(), dtype=dtype, count=nbytes // width)
