"""Fixtures for the tests of checkpoints: snapshots, places, stores."""

from pathlib import Path
from typing import Any

import pytest

from holdfast_checkpoint.format.manifest import Manifest
from holdfast_checkpoint.store.directory import CheckpointDirectory
from holdfast_proto.snapshot import Slot
from tests.support.coroutines import pytest_pyfunc_call
from tests.support.s3_server import client, s3_endpoint, server, small_parts, strict_server, url
from tests.support.snapshots import Snapshots, small_tmpfs, snapshots

__all__ = [
    "client", "pytest_pyfunc_call", "s3_endpoint", "server", "small_parts", "small_tmpfs", "snapshots",
    "strict_server", "url",
]  # fmt: skip


def contents(path: Path) -> dict[str, bytes]:
    """Return the tensors in a slot."""
    with Slot(path) as slot:
        return {entry.name: bytes(slot.tensor_bytes(entry)) for entry in slot.meta().tensors}


class SavedFolder(CheckpointDirectory):
    """A checkpoint directory, and the ranks that save to it."""

    def __init__(self, path: Path, snapshots: Snapshots, *, kept: int = 2) -> None:
        super().__init__(path, kept)
        self.snapshots = snapshots

    def write(self, rank: int, step: int, *, world_size: int = 2, **contents: Any) -> None:
        """Write a rank's shard."""
        self.snapshots.write(self, rank, step, world_size, **contents)

    def save(self, step: int, **contents: Any) -> Manifest:
        """Write and commit a checkpoint of all ranks, which are two."""
        return self.snapshots.commit(self, step, **contents)


@pytest.fixture
def checkpoints(tmp_path: Path, snapshots: Snapshots) -> SavedFolder:
    """A checkpoint directory that keeps two."""
    return SavedFolder(tmp_path / "checkpoints", snapshots)
