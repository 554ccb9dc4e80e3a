"""Reads every byte of a checkpoint, and leaves a mark of the result next to it."""

import time
from dataclasses import dataclass
from pathlib import Path

from holdfast_checkpoint.checkpoint_errors import CheckpointError, CheckpointUnavailable, CheckpointUnreadable
from holdfast_checkpoint.format.manifest import Manifest, content_digest, load_committed_index
from holdfast_checkpoint.format.shard_index import shard_path
from holdfast_checkpoint.format.shard_reader import verify_shard
from holdfast_checkpoint.format.verification import Verification, manifest_digest
from holdfast_checkpoint.store.overview import FoundCheckpoint
from holdfast_cli.checkpoints.checkpoint_folder import CheckpointFolder
from holdfast_cli.errors import CommandError


@dataclass(frozen=True)
class Verified:
    """What the reading of a checkpoint has found."""

    damages: tuple[str, ...]
    """What is wrong: at most one line for each shard, naming file and tensor."""
    is_whole: bool = True
    """Whether each file could be read. Else some are missing, or cannot be read now."""
    unnoted: str = ""
    """Reason for which the result could not be written next to the checkpoint; empty if it could, or need not."""


@dataclass(frozen=True)
class _Reading:
    """What the files have shown."""

    damages: tuple[str, ...]
    read_bytes: int = 0
    """Bytes of the shards that were read to their end and were right."""
    is_whole: bool = True
    """Whether each file could be read: else nothing is known of some bytes, and the result is not noted."""


def verify_checkpoint(checkpoint: FoundCheckpoint, folder: CheckpointFolder) -> Verified:
    """Read all of a checkpoint in ``folder``, and note the result there.

    Raises CommandError if it cannot be fetched.
    """
    manifest = checkpoint.manifest
    if manifest is None:
        return Verified((folder.named(checkpoint.problem),))
    # From before the reading: a file that changes during it makes the mark void.
    files = folder.digest(checkpoint.history, manifest)
    reading = _fetch_and_read(checkpoint, manifest, folder)
    damages = tuple(folder.named(line) for line in reading.damages)
    if files is None or not reading.is_whole:
        return Verified(damages, is_whole=reading.is_whole)
    mark = Verification(
        verified_unix_s=time.time(),
        manifest_digest=manifest_digest(manifest),
        files_digest=files,
        read_bytes=reading.read_bytes,
        damages=tuple(line.replace(f"{checkpoint.directory.parent}/", "") for line in reading.damages),
    )
    try:
        folder.note(checkpoint, mark)
    except CheckpointError as error:
        return Verified(damages, unnoted=folder.named(str(error)))
    return Verified(damages)


def _fetch_and_read(checkpoint: FoundCheckpoint, manifest: Manifest, folder: CheckpointFolder) -> _Reading:
    try:
        folder.fetch(checkpoint)
    except CheckpointUnreadable as error:
        return _Reading((str(error),))
    except CheckpointUnavailable as error:
        return _Reading((str(error),), is_whole=False)
    except CheckpointError as error:
        raise CommandError(str(error)) from None
    return _read(checkpoint.directory, manifest)


def _read(directory: Path, manifest: Manifest) -> _Reading:
    damages, indexes = [], []
    read_bytes, is_whole = 0, True
    for shard in manifest.shards:
        try:
            index = load_committed_index(directory, manifest, shard.rank)
            verify_shard(shard_path(directory, shard.rank), index)
        except (CheckpointUnreadable, CheckpointUnavailable) as error:
            damages.append(str(error))
            is_whole &= isinstance(error, CheckpointUnreadable)
        else:
            indexes.append(index)
            read_bytes += shard.shard_bytes
    if not damages and content_digest(indexes) != manifest.content_digest:
        damages.append(f"{directory}: the manifest is that of other tensors")
    return _Reading(tuple(damages), read_bytes, is_whole)
