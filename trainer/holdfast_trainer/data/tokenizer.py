"""Tokenizers, which turn text into token ids: one token for each byte, or a Hugging Face tokenizer."""

import hashlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from holdfast_hooks import ConfigurationError

if TYPE_CHECKING:
    import tokenizers

BYTES_PER_TOKEN = 5
"""Bytes of text that a token of a usual tokenizer stands for, about."""

_READ_BYTES = 1 << 20
_PIECE_CHARACTERS = 1 << 16
_PIECES_AT_ONCE = 16

Tokens = NDArray[np.unsignedinteger[Any]]
"""Token ids in the narrowest type that holds them all."""


class Tokenizer(Protocol):
    """Turns files into token ids, in parts of bounded size."""

    key: str
    """Key of its tokens in a cache."""
    vocabulary: int
    """Number of token ids. All ids are smaller."""
    dtype: np.dtype[np.unsignedinteger[Any]]
    """Data type of the ids."""
    ngram_factor: int
    """Tokens that stand for as much text as one token of a usual tokenizer."""

    def encode(self, path: Path) -> Iterator[Tokens]:
        """Yield the tokens of the file, in order."""


def open_tokenizer(value: str) -> Tokenizer:
    """Return the tokenizer that ``data.tokenizer`` names: ``bytes``, or the path of a tokenizer.json.

    Raises ConfigurationError if the file is missing or damaged, or if the package that reads it is not installed.
    """
    if value == "bytes":
        return ByteTokenizer()
    return FileTokenizer(Path(value).expanduser())


class ByteTokenizer:
    """Makes one token of each byte."""

    key = "bytes"
    vocabulary = 256
    dtype: np.dtype[np.unsignedinteger[Any]] = np.dtype(np.uint8)
    ngram_factor = BYTES_PER_TOKEN

    def encode(self, path: Path) -> Iterator[Tokens]:
        """See :class:`Tokenizer`."""
        with path.open("rb") as file:
            while content := file.read(_READ_BYTES):
                yield np.frombuffer(content, dtype=np.uint8)


class FileTokenizer:
    """Encodes text as a file of the `tokenizers` library says.

    Text is UTF-8. Bytes that are not UTF-8 become U+FFFD. Pieces that end at the end of a line keep memory bounded. No
    special tokens are added at the ends of a document, but those in the text are recognised.
    """

    ngram_factor = 1

    def __init__(self, path: Path) -> None:
        self._tokenizer = _load(path)
        self.key = hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
        self.vocabulary = max(self._tokenizer.get_vocab().values()) + 1
        self.dtype: np.dtype[np.unsignedinteger[Any]] = np.dtype(np.uint16 if self.vocabulary <= 1 << 16 else np.uint32)

    def encode(self, path: Path) -> Iterator[Tokens]:
        """See :class:`Tokenizer`."""
        pieces = _pieces(path)
        while batch := list(islice(pieces, _PIECES_AT_ONCE)):
            for encoding in self._tokenizer.encode_batch_fast(batch, add_special_tokens=False):
                yield np.array(encoding.ids, dtype=self.dtype)


def _load(path: Path) -> "tokenizers.Tokenizer":
    try:
        from tokenizers import Tokenizer as Library
    except ImportError:
        raise ConfigurationError(
            f"data.tokenizer {path}: the package tokenizers is missing: install the extra tokenizers of holdfast-torch"
        ) from None
    try:
        tokenizer = Library.from_file(str(path))
    except Exception as error:  # noqa: BLE001 (the library raises nothing narrower)
        raise ConfigurationError(
            f"data.tokenizer {path}: {error}: give `bytes` or the path of a Hugging Face tokenizer.json"
        ) from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _pieces(path: Path) -> Iterator[str]:
    """Yield the text of the file in pieces of about _PIECE_CHARACTERS, cut at the end of a line if there is one."""
    rest = ""
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        while content := file.read(_PIECE_CHARACTERS):
            text = rest + content
            cut = text.rfind("\n") + 1 or len(text)
            yield text[:cut]
            rest = text[cut:]
    if rest:
        yield rest
