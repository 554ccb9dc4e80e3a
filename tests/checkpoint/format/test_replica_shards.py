"""Replica snapshots: shards of one rank that are read alone, next to each other and without a manifest."""

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast_checkpoint.checkpoint_errors import CheckpointError, CheckpointUnreadable
from holdfast_checkpoint.format import slot_shard
from holdfast_checkpoint.format.durable import NewFile, write_file
from holdfast_checkpoint.format.shard_index import ShardIndex, index_path, load_index, shard_path, step_directory
from holdfast_checkpoint.format.shard_writer import read_back
from holdfast_checkpoint.format.slot_shard import read_replica, write_replica, write_shard
from holdfast_proto.snapshot import Meta, Slot, SlotState
from tests.checkpoint.conftest import contents
from tests.support.snapshots import Snapshots

FROZEN = bytes(range(256)) * 4096


def tensors(step: int) -> dict[str, bytes]:
    return {"frozen": FROZEN, "step": step.to_bytes(8, "little"), "nothing": b""}


def replica(snapshots: Snapshots, folder: Path, step: int, base_step: int | None = None) -> ShardIndex:
    slot = snapshots.slot(1, step, tensors=tensors(step), generation=3)
    return write_replica(slot, step_directory(folder, step), run="run", world_size=2, base_step=base_step)


@pytest.mark.parametrize("base_step", [None, 10])
def test_replica_comes_back_as_the_same_snapshot(base_step: int | None, snapshots: Snapshots, tmp_path: Path) -> None:
    replica(snapshots, tmp_path, 10)
    index = replica(snapshots, tmp_path, 20, base_step)
    assert (index.base and index.base.step) == base_step
    target = snapshots.empty(index.slot_bytes)

    assert read_replica(step_directory(tmp_path, 20), 1, target, generation=7) == index

    assert contents(target) == tensors(20)
    with Slot(target) as slot:
        header = slot.header
    assert (header.generation, header.step, header.rank, header.is_pinned) == (7, 20, 1, False)


def test_replica_holds_what_another_rank_writes_to_checkpoints(snapshots: Snapshots, tmp_path: Path) -> None:
    path = snapshots.slot(1, 10, tensors=tensors(10))
    with Slot(path) as slot:
        meta, data_bytes = slot.meta(), slot.header.data_bytes
        entries = tuple(dataclasses.replace(entry, writer=0) for entry in meta.tensors)
        slot.commit(Meta(meta.tree, entries), data_bytes=data_bytes, persist=True, replica=True)
    folder = tmp_path / "replicas"
    write_replica(path, step_directory(folder, 10), run="run", world_size=2)
    target = snapshots.empty(path.stat().st_size)
    read_replica(step_directory(folder, 10), 1, target, generation=1)
    assert contents(target) == tensors(10)

    write_shard(path, step_directory(tmp_path / "checkpoints", 10), run="run", world_size=2)
    with pytest.raises(CheckpointUnreadable, match="is no replica snapshot: it lacks tensors"):
        read_replica(step_directory(tmp_path / "checkpoints", 10), 1, target, generation=1)


@pytest.mark.parametrize("damaged", [10, 20])
def test_replica_with_a_flipped_byte_leaves_the_slot_empty(damaged: int, snapshots: Snapshots, tmp_path: Path) -> None:
    replica(snapshots, tmp_path, 10)
    index = replica(snapshots, tmp_path, 20, 10)
    path = shard_path(step_directory(tmp_path, damaged), 1)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    target = snapshots.empty(index.slot_bytes)
    with pytest.raises(CheckpointUnreadable, match=f"step-{damaged:08}"):
        read_replica(step_directory(tmp_path, 20), 1, target, generation=1)
    with Slot(target) as slot:
        assert slot.header.state is SlotState.EMPTY


def test_replica_without_a_sound_base_is_stored_as_a_whole(snapshots: Snapshots, tmp_path: Path) -> None:
    assert replica(snapshots, tmp_path, 20, 10).base is None
    replica(snapshots, tmp_path, 10)
    path = index_path(step_directory(tmp_path, 10), 1)
    path.write_bytes(path.read_bytes()[:-9])
    assert replica(snapshots, tmp_path, 30, 10).base is None


@pytest.mark.parametrize("write", [write_replica, write_shard])
def test_another_writer_may_release_its_pin_meanwhile(
    write: Callable[..., ShardIndex], snapshots: Snapshots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = snapshots.slot(0, 5)

    def release(file: NewFile, index: ShardIndex) -> None:
        with Slot(path) as slot:
            slot.set_persist(False)
            slot.release_replica()
        read_back(file, index)

    monkeypatch.setattr(slot_shard, "read_back", release)
    index = write(path, tmp_path / "step", run="run", world_size=1)
    assert load_index(tmp_path / "step", 0) == index


def test_shortage_of_memory_names_its_setting(snapshots: Snapshots, small_tmpfs: Path) -> None:
    write_file(small_tmpfs / "full", bytes(900 << 10))
    slot = snapshots.slot(0, 5, tensors={"noise": random.Random(1).randbytes(1 << 20)})
    with pytest.raises(CheckpointError, match=r"cannot write the replica snapshot .* set --shm-directory to a larger"):
        write_replica(slot, small_tmpfs / "step", run="run", world_size=1)
    assert list((small_tmpfs / "step").iterdir()) == []
