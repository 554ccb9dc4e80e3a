"""Reads every byte of a checkpoint."""

from collections.abc import Iterator

from holdfast_checkpoint.errors import CheckpointError, CheckpointUnavailable, CheckpointUnreadable
from holdfast_checkpoint.format.manifest import content_digest, load_committed_index
from holdfast_checkpoint.format.shard_index import shard_path
from holdfast_checkpoint.format.shard_reader import verify_shard
from holdfast_checkpoint.store.overview import FoundCheckpoint
from holdfast_cli.checkpoints.folder import CheckpointFolder
from holdfast_cli.errors import CommandError


def damages(checkpoint: FoundCheckpoint, folder: CheckpointFolder) -> list[str]:
    """Return what is wrong with a checkpoint in ``folder``: at most one line for each shard, naming file and tensor.

    Raises CommandError if it cannot be fetched.
    """
    try:
        if checkpoint.manifest is not None:
            folder.fetch(checkpoint)
        return [folder.named(line) for line in _damages(checkpoint)]
    except (CheckpointUnreadable, CheckpointUnavailable) as error:
        return [folder.named(str(error))]
    except CheckpointError as error:
        raise CommandError(str(error)) from None


def _damages(checkpoint: FoundCheckpoint) -> Iterator[str]:
    manifest = checkpoint.manifest
    if manifest is None:
        yield checkpoint.problem
        return
    indexes = []
    for rank in range(manifest.world_size):
        try:
            index = load_committed_index(checkpoint.directory, manifest, rank)
            verify_shard(shard_path(checkpoint.directory, rank), index)
        except (CheckpointUnreadable, CheckpointUnavailable) as error:
            yield str(error)
        else:
            indexes.append(index)
    if len(indexes) == manifest.world_size and content_digest(indexes) != manifest.content_digest:
        yield f"{checkpoint.directory}: the manifest is that of other tensors"
