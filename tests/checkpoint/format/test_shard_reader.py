"""States that are large enough to be read by several processes."""

import os
import random
from pathlib import Path

import pytest

from holdfast_checkpoint.checkpoint_errors import CheckpointUnreadable
from holdfast_checkpoint.format.shard_index import load_index, shard_path
from holdfast_checkpoint.format.slot_shard import read_shard
from holdfast_proto.snapshot import Slot, SlotState
from tests.checkpoint.conftest import SavedFolder, contents
from tests.support.snapshots import Snapshots

SIZES = {"a": 5 << 20, "nothing": 0, "b": 3, "c": (6 << 20) + 1, "d": 4 << 20, "e": 9 << 20, "f": 17}
STATE = {name: random.Random(size).randbytes(size) for name, size in SIZES.items()}


@pytest.fixture
def directory(checkpoints: SavedFolder) -> Path:
    """A committed checkpoint of STATE."""
    checkpoints.save(10, world_size=1, tensors=STATE)
    return checkpoints.step_directory(10)


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes that are forked."""
    pids: list[int] = []
    fork = os.fork

    def counted() -> int:
        pids.append(fork())
        return pids[-1]

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    monkeypatch.setattr(os, "fork", counted)
    return pids


def test_every_tensor_comes_back_through_several_processes(
    directory: Path, snapshots: Snapshots, forks: list[int]
) -> None:
    target = snapshots.empty(32 << 20)
    read_shard(directory, 0, target, generation=2)
    assert len(forks) == 3
    assert contents(target) == STATE


def test_the_first_damaged_tensor_is_named_and_the_slot_stays_empty(
    directory: Path, snapshots: Snapshots, forks: list[int]
) -> None:
    path = shard_path(directory, 0)
    data = bytearray(path.read_bytes())
    for tensor in load_index(directory, 0).tensors:
        if tensor.entry.name in {"c", "e", "f"}:
            data[tensor.stored_offset + tensor.stored_bytes - 1] ^= 1
    path.write_bytes(data)
    target = snapshots.empty(32 << 20)
    with pytest.raises(CheckpointUnreadable, match=r"rank-00000\.shard is damaged: tensor c does not match its digest"):
        read_shard(directory, 0, target, generation=2)
    assert len(forks) == 3
    with Slot(target) as slot:
        assert slot.header.state is SlotState.EMPTY
    for pid in forks:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
