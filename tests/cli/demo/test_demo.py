import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast_checkpoint.checkpoint_errors import CheckpointUnreadable
from holdfast_checkpoint.format.shard_index import shard_path
from holdfast_checkpoint.store.directory import CheckpointDirectory
from holdfast_cli.commands.demo import state_differences

if TYPE_CHECKING:
    from tests.support.snapshots import Snapshots

RUN = "run"


def test_equal_states_have_no_differences_whichever_ranks_saved_them(snapshots: "Snapshots", tmp_path: Path) -> None:
    a, b = (CheckpointDirectory(tmp_path / name, kept=1) for name in "ab")
    tensors = {"weight": random.Random(1).randbytes(5 << 20), "nothing": b""}
    snapshots.commit(a, 10, tensors=tensors, generation=1)
    snapshots.commit(b, 10, tensors=tensors, generation=4)
    assert state_differences(a.step_directory(10), b.step_directory(10)) == []


def test_differences_are_named_by_rank_and_tensor(snapshots: "Snapshots", tmp_path: Path) -> None:
    a, b, wider = (CheckpointDirectory(tmp_path / name, kept=1) for name in ("a", "b", "wider"))
    weight = random.Random(1).randbytes(5 << 20)
    flipped = weight[:-1] + bytes([weight[-1] ^ 1])
    for rank in range(2):
        snapshots.write(a, rank, 10, 2, tensors={"weight": weight, "bias": b"12", "end": b"1"}, tree={"x": 1})
    snapshots.write(b, 0, 10, 2, tensors={"weight": flipped, "bias": b"123", "end": b"1"}, tree={"x": 1})
    snapshots.write(b, 1, 10, 2, tensors={"weight": weight, "other": b"12", "end": b"1"}, tree={"x": True})
    for checkpoints in (a, b):
        checkpoints.commit_if_complete(10, 2, RUN)
    snapshots.commit(wider, 10, world_size=3)

    assert state_differences(a.step_directory(10), b.step_directory(10)) == [
        "rank 0 tensor weight: values differ",
        "rank 0 tensor bias: type or shape differ",
        "rank 1: the trees differ",
        "rank 1: the tensors are others or in another order: bias, other",
    ]
    assert state_differences(a.step_directory(10), wider.step_directory(10)) == ["world size: 2 and 3"]


def test_differences_with_a_damaged_checkpoint_are_not_listed(snapshots: "Snapshots", tmp_path: Path) -> None:
    a, b = (CheckpointDirectory(tmp_path / name, kept=1) for name in "ab")
    for checkpoints in (a, b):
        snapshots.commit(checkpoints, 10)
        path = shard_path(checkpoints.step_directory(10), 1)
        path.write_bytes(path.read_bytes().replace(b"\x0a", b"\x0b"))
    with pytest.raises(CheckpointUnreadable, match=r"rank-00001\.shard"):
        state_differences(a.step_directory(10), b.step_directory(10))
