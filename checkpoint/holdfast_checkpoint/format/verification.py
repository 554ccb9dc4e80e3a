"""The mark of a checkpoint that was read whole: when ``holdfast checkpoint verify`` did so last, and what it found.

::

    step-00000040/verified.json

The mark says: at that time, every byte that the checkpoint needs was read and compared with its digests, and these were
the damages, the first of each shard. It does not say that the bytes are right now: a disk can damage a file unseen.

The mark is void once the manifest is another one, or the size or the time of change of one of the files is. Only people
read it: a start, a fallback and retention never do. It belongs to one place, so no copy of a checkpoint takes it along.
"""

import dataclasses
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from holdfast_checkpoint.checkpoint_errors import CheckpointError
from holdfast_checkpoint.format.durable import write_file
from holdfast_checkpoint.format.manifest import Manifest, load_manifest
from holdfast_checkpoint.format.sealed_json import digest_of, seal, unseal_format
from holdfast_checkpoint.format.shard_index import index_path, shard_path, step_directory
from holdfast_proto.limits import is_count, is_unix_time

VERIFIED = "verified.json"
"""Name of the file. A damaged one is as good as none."""

_FORMAT = 1
_MOST_BYTES = 64 << 10
_MOST_DAMAGES = 16
_MOST_CHARACTERS = 600


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What one reading of a whole checkpoint has found."""

    verified_unix_s: float
    """Unix time at which the reading ended."""
    manifest_digest: str
    """Digest of the manifest: see :func:`manifest_digest`."""
    files_digest: str
    """Digest of sizes and times of change, from before the reading: see :func:`files_digest`."""
    read_bytes: int
    """Bytes of the checkpoint's own shards that were read to their end and were right."""
    damages: tuple[str, ...] = ()
    """One line for each damaged shard, the first ones; none: every byte was as it was written."""

    def encode(self) -> bytes:
        """Return the file. Lines that are too many or too long are cut off."""
        damages = [_printable(line)[:_MOST_CHARACTERS] for line in self.damages[:_MOST_DAMAGES]]
        return seal({"format": _FORMAT, **dataclasses.asdict(self), "damages": damages})

    @classmethod
    def decode(cls, data: bytes) -> "Verification":
        """Invert :meth:`encode`. Raises ValueError or LookupError if a byte differs or a value is odd."""
        body = unseal_format(data, _FORMAT)
        if body.keys() != {field.name for field in dataclasses.fields(cls)} or not isinstance(body["damages"], list):
            raise ValueError("has other fields")
        mark = cls(**{**body, "damages": tuple(body["damages"])})
        if not mark._is_plausible():
            raise ValueError("has odd values")
        return mark

    def _is_plausible(self) -> bool:
        return (
            is_unix_time(self.verified_unix_s)
            and is_count(self.read_bytes)
            and isinstance(self.manifest_digest, str)
            and isinstance(self.files_digest, str)
            and len(self.damages) <= _MOST_DAMAGES
            and all(_is_line(line) for line in self.damages)
        )


def checked_files(manifest: Manifest) -> list[str]:
    """Return the files that a reading of the whole checkpoint reads, and those of its bases, as ``FOLDER/NAME``."""
    folders = [step_directory(Path(), step) for step in (manifest.step, *manifest.bases)]
    return [
        str(path(folder, shard.rank))
        for folder in folders
        for shard in manifest.shards
        for path in (index_path, shard_path)
    ]


def manifest_digest(manifest: Manifest) -> str:
    """Return the digest of the manifest's file."""
    return digest_of(manifest.encode())


def files_digest(versions: Iterable[object]) -> str:
    """Return a digest of the versions of :func:`checked_files`, in that order: text, or numbers, for each."""
    return digest_of(json.dumps(list(versions)).encode())


def files_digest_in(checkpoints: Path, manifest: Manifest) -> str | None:
    """Return the digest of sizes and times of change in a folder; None if a file is missing or cannot be looked at."""
    try:
        found = [(checkpoints / name).stat() for name in checked_files(manifest)]
    except OSError:
        return None
    return files_digest((one.st_size, one.st_mtime_ns) for one in found)


def read_verification(
    directory: Path, manifest: Manifest, present_files: Callable[[], str | None]
) -> Verification | None:
    """Return the mark in ``directory``; None if there is none, if it is damaged, or if it is void.

    ``present_files`` returns the digest of the files as they are now. It is called only for a mark of this manifest.
    """
    path = directory / VERIFIED
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return None
        mark = Verification.decode(path.read_bytes())
    except (OSError, ValueError, LookupError, RecursionError):
        return None
    is_valid = mark.manifest_digest == manifest_digest(manifest) and mark.files_digest == present_files()
    return mark if is_valid else None


def write_verification(directory: Path, mark: Verification) -> None:
    """Write the mark next to the manifest, durably. It replaces an older one.

    Raises CheckpointError if the checkpoint is gone or another one by now, and if the file cannot be written.
    """
    if manifest_digest(load_manifest(directory)) != mark.manifest_digest:
        raise CheckpointError(f"{directory} holds another checkpoint now")
    try:
        write_file(directory / VERIFIED, mark.encode())
    except OSError as error:
        raise CheckpointError(f"cannot write {directory / VERIFIED}: {error.strerror or error}") from error


def _printable(line: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in line)


def _is_line(value: object) -> bool:
    return isinstance(value, str) and value.isprintable() and len(value) <= _MOST_CHARACTERS
