"""Snapshots as ranks leave them. Rank, step and generation determine their contents."""

import hashlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast_checkpoint.format.manifest import Manifest
from holdfast_checkpoint.format.slot_shard import write_shard
from holdfast_checkpoint.store.directory import CheckpointDirectory
from holdfast_checkpoint.store.histories import FolderPlace, Histories, StorePlace
from holdfast_checkpoint.store.locations import HistoryCheckpoints
from holdfast_checkpoint.store.run_checkpoints import RunCheckpoints
from holdfast_checkpoint.store.staged_checkpoints import StagedCheckpoints
from holdfast_proto.snapshot import DATA_OFFSET, Meta, Slot, TensorEntry, align, allocate
from tests.support.tmpfs import mounted_tmpfs

RUN = "run"


class Snapshots:
    """Fills slots below one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._numbers = itertools.count()

    def empty(self, nbytes: int = 1 << 16) -> Path:
        """Return a new slot."""
        path = self.directory / f"test-{os.getpid()}-{next(self._numbers)}.slot"
        allocate(path, nbytes)
        return path

    def tensors(self, rank: int, step: int, generation: int = 1) -> dict[str, bytes]:
        """Return the tensors of a rank's state at the end of a step."""
        seed = f"{generation}.{step}.{rank}".encode()
        return {
            "model.weight": hashlib.shake_128(seed).digest(256),
            "model.nothing": b"",
            "optimizer.step": step.to_bytes(8, "little"),
            "model.zeros": bytes(1000),
        }

    def fill(
        self,
        path: Path,
        rank: int,
        step: int,
        *,
        generation: int = 1,
        tensors: dict[str, bytes] | None = None,
        tree: Any = None,
        persist: bool = True,
        replica: bool = False,
        dtype: str = "uint8",
    ) -> Path:
        """Fill a slot with a complete snapshot."""
        contents = self.tensors(rank, step, generation) if tensors is None else tensors
        entries, offset = [], DATA_OFFSET
        with Slot(path) as slot:
            slot.begin(generation=generation, step=step, rank=rank)
            for name, data in contents.items():
                shape = (len(data),)
                entries.append(TensorEntry(name, dtype, shape, offset, len(data), shape, (0,)))
                slot.buffer[offset : offset + len(data)] = data
                offset = align(offset + len(data))
            meta = Meta({"scheduler": {"last": 0.1}} if tree is None else tree, tuple(entries))
            slot.commit(meta, data_bytes=offset - DATA_OFFSET, persist=persist, replica=replica)
        return path

    def slot(self, rank: int, step: int, **contents: Any) -> Path:
        """Return a new slot with a complete snapshot."""
        nbytes = sum(map(len, (contents.get("tensors") or {}).values())) + (1 << 16)
        return self.fill(self.empty(nbytes), rank, step, **contents)

    def write(
        self, checkpoints: HistoryCheckpoints | RunCheckpoints, rank: int, step: int, world_size: int, **contents: Any
    ) -> None:
        """Write one rank's shard."""
        slot = self.slot(rank, step, **contents)
        place = checkpoints.at(step) if isinstance(checkpoints, RunCheckpoints) else checkpoints
        write_shard(slot, place.step_directory(step), run=RUN, world_size=world_size)
        slot.unlink()

    def commit(
        self, checkpoints: HistoryCheckpoints | RunCheckpoints, step: int, world_size: int = 2, **contents: Any
    ) -> Manifest:
        """Write and commit a checkpoint of all ranks."""
        for rank in range(world_size):
            self.write(checkpoints, rank, step, world_size, **contents)
        manifest = checkpoints.commit_if_complete(step, world_size, RUN)
        assert manifest is not None
        return manifest


def as_run(history: HistoryCheckpoints, run: str = RUN) -> RunCheckpoints:
    """Return the checkpoints of a run whose only history these are."""
    remote = history.remote.store if isinstance(history, StagedCheckpoints) else None
    place = FolderPlace(history.path) if remote is None else StorePlace(remote)
    return RunCheckpoints(Histories(place, lambda _: history), run, history.path, 2)


@pytest.fixture
def snapshots(tmp_path: Path) -> Snapshots:
    """Slots of the test's own."""
    directory = tmp_path / "snapshots"
    directory.mkdir()
    return Snapshots(directory)


@pytest.fixture
def checkpoints(tmp_path: Path) -> CheckpointDirectory:
    """A checkpoint directory that keeps two."""
    return CheckpointDirectory(tmp_path / "checkpoints", kept=2)


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A memory file system of 1 MiB."""
    with mounted_tmpfs(tmp_path / "small", "1m", lazily_unmounted=True) as folder:
        yield folder
