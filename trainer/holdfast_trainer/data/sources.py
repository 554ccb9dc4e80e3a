"""The files that a setting names, and their split into training and validation."""

import hashlib
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast_hooks import ConfigurationError

_TOKEN_SUFFIXES = {".bin", ".npy"}
_SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "__pycache__"}


@dataclass(frozen=True)
class Document:
    """A source file."""

    path: Path
    name: str
    """Path relative to the source folder. It decides the order and the split."""

    @property
    def stamp(self) -> str:
        """Path, size and modification time: it changes when the file does."""
        status = self.path.stat()
        return f"{self.path.absolute()}\0{status.st_size}\0{status.st_mtime_ns}"


@dataclass(frozen=True, kw_only=True)
class NamedFiles:
    """The files that a setting names: text files, or one file of tokens."""

    setting: str
    """Setting and value, with which messages begin."""
    documents: tuple[Document, ...]
    """Files in the order of their names; at least one."""
    has_tokens: bool
    """Whether the one document is a token file."""


def find(key: str, value: str) -> NamedFiles:
    """Return the files that the setting ``key`` names with ``value``.

    ``value`` is ``stdlib``, a text file, a folder of text files, or a token file (``*.bin``, ``*.npy``). Raises
    ConfigurationError if there is no file, or one that cannot be read.
    """
    setting = f"{key} {value}"
    root = Path(sysconfig.get_path("stdlib")) if value == "stdlib" else Path(value).expanduser()
    try:
        found = list(_files(root))
    except FileNotFoundError:
        raise ConfigurationError(f"{setting}: no such file or folder: give `stdlib` or a path") from None
    except OSError as error:
        raise ConfigurationError(f"{setting}: {error.filename}: {error.strerror}: make it readable") from None
    if value == "stdlib":
        found = [path for path in found if path.suffix == ".py"]
    if not found:
        raise ConfigurationError(f"{setting}: no text in {root}: give a path to a text file or folder")
    documents = sorted((Document(path, path.relative_to(root).as_posix()) for path in found), key=_name)
    return NamedFiles(
        setting=setting,
        documents=tuple(documents),
        has_tokens=root.suffix in _TOKEN_SUFFIXES and root.is_file(),
    )


def split(documents: tuple[Document, ...], share: float) -> tuple[list[Document], list[Document]]:
    """Return the training and the validation documents. About ``share`` of them, and at least one, are for validation.

    The name alone decides for each file, so that it stays in its part when other files are added.
    """
    chosen = {document.name for document in documents if in_validation_part(document.name, share)}
    chosen = chosen or {min(documents, key=lambda document: _position(document.name)).name}
    training = [document for document in documents if document.name not in chosen]
    return training, [document for document in documents if document.name in chosen]


def in_validation_part(name: str, share: float) -> bool:
    """Return whether the file with this relative name belongs to the ``share`` for validation."""
    return _position(name) < share


def _position(name: str) -> float:
    """Return a number in [0, 1) that depends on the name alone."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) / 2**64


def _name(document: Document) -> str:
    return document.name


def _files(root: Path) -> Iterator[Path]:
    """Yield ``root`` if it is a file, else the regular files below it, without hidden folders, tests and packages.

    Raises OSError for a file or folder that cannot be read.
    """
    if not root.is_dir():
        _expect_readable(root)
        yield root
        return
    for folder, folders, names in os.walk(root, onerror=_refuse):
        folders[:] = [name for name in folders if name not in _SKIPPED_FOLDERS and not name.startswith(".")]
        for path in (Path(folder, name) for name in names):
            if path.is_file():
                _expect_readable(path)
                yield path


def _expect_readable(path: Path) -> None:
    path.open("rb").close()


def _refuse(error: OSError) -> None:
    raise error
