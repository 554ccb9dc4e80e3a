"""The text, built once into a cache folder and then only mapped.

A corpus folder holds ``train.bin`` and ``validation.bin`` (bytes, which are the tokens) and ``corpus.json``.
It appears by one rename, so that whoever finds it finds it complete.
"""

import dataclasses
import fcntl
import hashlib
import json
import os
import shutil
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from holdfast_hooks import ConfigurationError
from holdfast_trainer.config import DataConfig

VALIDATION_FRACTION = 0.05
_SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "__pycache__"}


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Where the tokens lie, and how many there are."""

    directory: Path
    train_bytes: int
    validation_bytes: int
    digest: str
    """BLAKE2b of the training part followed by the validation part, hexadecimal."""

    @property
    def train(self) -> Path:
        """The file of the training part."""
        return self.directory / "train.bin"

    @property
    def validation(self) -> Path:
        """The file of the validation part."""
        return self.directory / "validation.bin"


@dataclass(frozen=True)
class Document:
    """A source file."""

    path: Path
    name: str
    """Relative to the source folder; decides order and split."""


def prepare(config: DataConfig) -> Corpus:
    """Return the corpus of ``data.source``, building it unless the cache has it.

    Any number of processes may call this at once; one builds. The cache is keyed by the names, sizes
    and modification times of the source files. Raises ConfigurationError if the source is not usable.
    """
    documents = _documents(config.source)
    cache = config.cache_directory.expanduser()
    directory = cache / _cache_name(config.source, documents)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / f"{directory.name}.lock"):
            if not directory.exists():
                _build(documents, directory)
    except OSError as error:
        raise ConfigurationError(f"data.cache_directory {cache}: {error.filename}: {error.strerror}") from None
    facts = json.loads((directory / "corpus.json").read_text(encoding="utf-8"))
    corpus = Corpus(directory=directory, **facts)
    _check_length(config, corpus)
    return corpus


def in_validation_part(name: str) -> bool:
    """Whether the file of this relative name is one of the few percent kept for validation."""
    return _position(name) < VALIDATION_FRACTION


def _position(name: str) -> float:
    """Return a number in [0, 1) that depends on the name alone."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) / 2**64


def _documents(source: str) -> list[Document]:
    if source == "stdlib":
        root = Path(sysconfig.get_path("stdlib"))
        found = [path for path in _files(root) if path.suffix == ".py"]
    else:
        root = Path(source).expanduser()
        if not root.exists():
            raise ConfigurationError(f"data.source {source}: no such file or folder: give `stdlib` or a path")
        found = list(_files(root)) if root.is_dir() else [root]
    if not found:
        raise ConfigurationError(f"data.source {source}: no text in {root}: give a path to a text file or folder")
    documents = [Document(path, path.relative_to(root).as_posix()) for path in found]
    return sorted(documents, key=lambda document: document.name)


def _files(root: Path) -> Iterator[Path]:
    """Yield the regular files below ``root``, without hidden folders, tests and installed packages."""
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _SKIPPED_FOLDERS and not name.startswith(".")]
        yield from (path for name in names if (path := Path(folder, name)).is_file())


def _cache_name(source: str, documents: list[Document]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for document in documents:
        status = document.path.stat()
        digest.update(f"{document.path}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return f"{Path(source).stem or 'corpus'}-{digest.hexdigest()}"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(documents: list[Document], directory: Path) -> None:
    """Write the corpus folder. The caller holds its lock."""
    building = directory.with_name(f"{directory.name}.building")
    shutil.rmtree(building, ignore_errors=True)  # of a builder that was killed
    building.mkdir()
    train, validation = _split(documents)
    digest = hashlib.blake2b(train + validation, digest_size=16).hexdigest()
    corpus = Corpus(directory=building, train_bytes=len(train), validation_bytes=len(validation), digest=digest)
    corpus.train.write_bytes(train)
    corpus.validation.write_bytes(validation)
    facts = {key: value for key, value in dataclasses.asdict(corpus).items() if key != "directory"}
    (building / "corpus.json").write_text(json.dumps(facts, indent=2), encoding="utf-8")
    building.rename(directory)


def _check_length(config: DataConfig, corpus: Corpus) -> None:
    for part, nbytes in (("training", corpus.train_bytes), ("validation", corpus.validation_bytes)):
        if nbytes <= config.sequence:
            raise ConfigurationError(
                f"data.source {config.source}: {nbytes} bytes of {part} text are too few for "
                f"data.sequence = {config.sequence}: give more text or lower data.sequence"
            )


def _split(documents: list[Document]) -> tuple[bytes, bytes]:
    """Return the training and the validation part: whole files, or the two ends of the only file."""
    if len(documents) == 1:
        content = documents[0].path.read_bytes()
        cut = round(len(content) * (1 - VALIDATION_FRACTION))
        return content[:cut], content[cut:]
    chosen = {document.name for document in documents if in_validation_part(document.name)}
    chosen = chosen or {min(documents, key=lambda document: _position(document.name)).name}
    train = b"".join(document.path.read_bytes() for document in documents if document.name not in chosen)
    validation = b"".join(document.path.read_bytes() for document in documents if document.name in chosen)
    return train, validation
