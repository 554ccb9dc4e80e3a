"""One of the ranks that hold a tensor stores it, and checkpoints of another world size are verified."""

from dataclasses import replace
from pathlib import Path

import pytest

from holdfast_agent.checkpoints.worker import verify_share
from holdfast_checkpoint.checkpoint_errors import CheckpointUnreadable
from holdfast_checkpoint.format.manifest import load_manifest
from holdfast_checkpoint.format.shard_index import load_index, shard_path
from holdfast_checkpoint.format.slot_shard import read_shard, write_shard
from holdfast_checkpoint.store.directory import CheckpointDirectory
from holdfast_proto.snapshot import Meta, Slot
from tests.support.snapshots import Snapshots

RUN = "run"
SHARED = {"norm": b"the same on both", "head": b"on both as well", "own": b""}
WRITERS = {"norm": 1, "head": 0, "own": None}


def commit(snapshots: Snapshots, checkpoints: CheckpointDirectory, step: int = 4) -> Path:
    """Commit a checkpoint of two ranks, each of which stores one tensor for both."""
    for rank in range(2):
        path = snapshots.slot(rank, step, tensors=SHARED | {"own": b"of rank %d" % rank})
        with Slot(path) as slot:
            meta = slot.meta()
            entries = tuple(replace(entry, writer=WRITERS[entry.name]) for entry in meta.tensors)
            shared = Meta(meta.tree, entries, coordinates={"dp": rank})
            slot.commit(shared, data_bytes=slot.header.data_bytes, persist=True)
        write_shard(path, checkpoints.step_directory(step), run=RUN, world_size=2)
    assert checkpoints.commit_if_complete(step, 2, RUN) is not None
    return checkpoints.step_directory(step)


def test_each_tensor_is_stored_by_its_writer_alone(snapshots: Snapshots, checkpoints: CheckpointDirectory) -> None:
    directory = commit(snapshots, checkpoints)
    stored = [[t.entry.name for t in load_index(directory, rank).tensors if t.is_stored] for rank in range(2)]
    assert stored == [["head", "own"], ["norm", "own"]]
    sizes = {name: len(data) for name, data in SHARED.items()}
    assert load_manifest(directory).raw_bytes == sizes["norm"] + sizes["head"] + 2 * len(b"of rank 0")


def test_every_rank_gets_its_whole_state_back(snapshots: Snapshots, checkpoints: CheckpointDirectory) -> None:
    directory = commit(snapshots, checkpoints)
    for rank in range(2):
        target = snapshots.empty()
        read_shard(directory, rank, target, generation=5)
        with Slot(target) as slot:
            meta = slot.meta()
            contents = {entry.name: bytes(slot.tensor_bytes(entry)) for entry in meta.tensors}
        assert contents == SHARED | {"own": b"of rank %d" % rank}
        assert meta.coordinates == {"dp": rank}


def test_damage_in_the_writers_shard_is_found_by_every_rank(
    snapshots: Snapshots, checkpoints: CheckpointDirectory
) -> None:
    directory = commit(snapshots, checkpoints)
    path = shard_path(directory, 1)
    data = bytearray(path.read_bytes())
    norm = next(tensor for tensor in load_index(directory, 1).tensors if tensor.entry.name == "norm")
    data[norm.stored_offset + norm.stored_bytes // 2] ^= 1
    path.write_bytes(data)
    for rank in range(2):
        with pytest.raises(CheckpointUnreadable, match=r"rank-00001\.shard is damaged: tensor norm"):
            read_shard(directory, rank, snapshots.empty(), generation=5)


@pytest.mark.parametrize("world_size", [1, 3])
def test_nodes_of_another_world_verify_every_shard_between_them(
    world_size: int, snapshots: Snapshots, checkpoints: CheckpointDirectory
) -> None:
    directory = commit(snapshots, checkpoints)
    manifest = load_manifest(directory)
    for rank in range(world_size):
        verify_share(directory, manifest, [rank], world_size)
    shard_path(directory, 1).write_bytes(b"damaged")
    refused = []
    for rank in range(world_size):
        try:
            verify_share(directory, manifest, [rank], world_size)
        except CheckpointUnreadable as error:
            refused.append((rank, "rank-00001.shard" in str(error)))
    assert refused == [(1 % world_size, True)]
