"""From text to token ids: bytes as they are, or a Hugging Face tokenizer."""

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

_READ_BYTES = 1 << 20
_PIECE_CHARACTERS = 1 << 16
_PIECES_AT_ONCE = 16

Tokens = NDArray[np.unsignedinteger[Any]]
"""Token ids, of the narrowest type that holds them all."""


class Tokenizer(Protocol):
    """Turns files into token ids, a bounded part at a time."""

    key: str
    """What a cache of its tokens is keyed by."""
    vocabulary: int
    """Ids are below it."""
    dtype: np.dtype[np.unsignedinteger[Any]]
    """Of the ids."""

    def encode(self, path: Path) -> Iterator[Tokens]:
        """Yield the tokens of the file, in order."""


def open_tokenizer(value: str) -> Tokenizer:
    """Return the tokenizer that ``data.tokenizer`` names: ``bytes``, or the path of a tokenizer.json.

    Raises ConfigurationError if there is none, or if the package that reads it is not installed.
    """
    if value == "bytes":
        return ByteTokenizer()
    return FileTokenizer(Path(value).expanduser())


class ByteTokenizer:
    """A token is a byte."""

    key = "bytes"
    vocabulary = 256
    dtype: np.dtype[np.unsignedinteger[Any]] = np.dtype(np.uint8)

    def encode(self, path: Path) -> Iterator[Tokens]:
        """See :class:`Tokenizer`."""
        with path.open("rb") as file:
            while content := file.read(_READ_BYTES):
                yield np.frombuffer(content, dtype=np.uint8)


class FileTokenizer:
    """What a file of the `tokenizers` library describes.

    Text is UTF-8; bytes that are not become U+FFFD. It is encoded in pieces that end where a line ends, so that
    memory is bounded. No tokens are added at the ends of a document; those that the text spells out are recognised.
    """

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
            f"data.tokenizer {path}: its reader is missing: install the extra tokenizers of holdfast-torch"
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
    """Yield the text of the file in pieces of about _PIECE_CHARACTERS, cut after a line if there is one."""
    rest = ""
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        while content := file.read(_PIECE_CHARACTERS):
            text = rest + content
            cut = text.rfind("\n") + 1 or len(text)
            yield text[:cut]
            rest = text[cut:]
    if rest:
        yield rest
