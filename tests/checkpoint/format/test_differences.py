"""Checkpoints that build on a full one."""

import random
import struct
from pathlib import Path

import pytest

from holdfast_checkpoint.checkpoint_errors import CheckpointCommitted, CheckpointUnavailable, CheckpointUnreadable
from holdfast_checkpoint.format.base_shard import Earlier
from holdfast_checkpoint.format.manifest import MANIFEST, Manifest
from holdfast_checkpoint.format.shard_index import index_path, load_index, shard_path
from holdfast_checkpoint.format.shard_reader import ShardReader
from holdfast_checkpoint.format.slot_shard import read_shard, write_shard
from holdfast_checkpoint.store.directory import CheckpointDirectory
from tests.checkpoint.conftest import SavedFolder, contents
from tests.support.snapshots import RUN, Snapshots

VALUES = 700_000  # of two chunks, the second not full


def weights(step: int) -> dict[str, bytes]:
    """Return three tensors: one barely moves from step to step, one is different each time, and one is empty."""
    generator = random.Random(5)
    moving = [generator.getrandbits(32) & ~63 for _ in range(VALUES // 100)] * 100
    return {
        "barely": struct.pack(f"<{VALUES}I", *(value + step % 64 for value in moving)),
        "noise": random.Random(step).randbytes(10_000),
        "nothing": b"",
    }


class Training:
    """A training that saves checkpoints as an agent does, with a base for each."""

    def __init__(self, snapshots: Snapshots, checkpoints: CheckpointDirectory, full_every: int) -> None:
        self.snapshots = snapshots
        self.checkpoints = checkpoints
        self.full_every = full_every
        self.compress = True

    def write(self, step: int, generation: int = 1) -> None:
        base = self.checkpoints.base_for(step, run=RUN, world_size=1, generation=generation, full_every=self.full_every)
        slot = self.snapshots.slot(0, step, tensors=weights(step), generation=generation)
        directory = self.checkpoints.step_directory(step)
        write_shard(slot, directory, run=RUN, world_size=1, base_step=base, compress=lambda: self.compress)
        slot.unlink()

    def expect_whole(self, *steps: int) -> None:
        for step in steps:
            assert self.load(step) == weights(step)
            assert self.checkpoints.verify(step).step == step

    def save(self, *steps: int, generation: int = 1) -> Manifest:
        for step in steps:
            self.write(step, generation=generation)
            assert self.checkpoints.commit_if_complete(step, 1, RUN) is not None
        return self.checkpoints.load_manifest(steps[-1])

    def load(self, step: int) -> dict[str, bytes]:
        target = self.snapshots.empty(4 << 20)
        read_shard(self.checkpoints.step_directory(step), 0, target, generation=9)
        return contents(target)


@pytest.fixture
def training(snapshots: Snapshots, tmp_path: Path) -> Training:
    """A training in which every third checkpoint is full and many are kept."""
    return Training(snapshots, CheckpointDirectory(tmp_path / "checkpoints", kept=9), full_every=3)


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_all_build_on_the_last_full_one_and_every_nth_is_full(training: Training) -> None:
    bases = [training.save(step).bases for step in range(10, 80, 10)]
    assert bases == [(), (10,), (10,), (), (40,), (40,), ()]
    training.expect_whole(*range(10, 80, 10))


def test_a_difference_is_smaller_and_names_its_base(training: Training) -> None:
    full, difference = training.save(10), training.save(20)
    assert difference.stored_bytes < full.stored_bytes / 2
    index = load_index(training.checkpoints.step_directory(20), 0)
    assert index.base is not None
    assert (index.base.step, index.base.index_digest) == (10, full.shards[0].index_digest)


def test_state_that_has_nothing_in_common_with_the_base_is_stored_as_a_full_one(checkpoints: SavedFolder) -> None:
    for step, base in ((10, None), (20, 10)):
        slot = checkpoints.snapshots.slot(0, step, tensors={"noise": random.Random(step).randbytes(10_000)})
        write_shard(slot, checkpoints.step_directory(step), run=RUN, world_size=1, base_step=base)
        manifest = checkpoints.commit_if_complete(step, 1, RUN)
        assert manifest is not None and manifest.bases == ()


def test_what_is_stored_raw_can_be_read_alone_and_be_built_on(training: Training) -> None:
    training.save(10)
    training.compress = False
    assert training.save(20).bases == ()
    training.compress = True
    assert training.save(30).bases == (20,)
    training.expect_whole(10, 20, 30)


def test_another_generation_begins_with_a_full_one(training: Training) -> None:
    training.save(10, 20, generation=1)
    assert training.save(30, generation=2).bases == ()
    assert training.save(40, generation=2).bases == (30,)


def test_full_every_one_makes_all_full(training: Training) -> None:
    training.full_every = 1
    assert [training.save(step).bases for step in (10, 20, 30)] == [(), (), ()]


def test_a_tensor_of_another_shape_is_stored_as_a_whole(training: Training) -> None:
    training.save(10)
    tensors = weights(20) | {"barely": weights(20)["barely"][:-4], "new": b"new"}
    slot = training.snapshots.slot(0, 20, tensors=tensors)
    directory = training.checkpoints.step_directory(20)
    write_shard(slot, directory, run=RUN, world_size=1, base_step=10)
    assert training.checkpoints.commit_if_complete(20, 1, RUN) is not None
    assert training.load(20) == tensors


def test_a_base_is_kept_as_long_as_a_kept_checkpoint_needs_it(training: Training) -> None:
    training.checkpoints.kept = 1
    listed = []
    for step in range(10, 60, 10):
        training.save(step)
        listed.append(training.checkpoints.committed())
    assert listed == [[10], [10, 20], [10, 30], [40], [40, 50]]
    assert sorted(path.name for path in training.checkpoints.path.iterdir()) == ["step-00000040", "step-00000050"]


def test_a_base_whose_manifest_is_damaged_is_kept_and_serves(training: Training) -> None:
    training.checkpoints.kept = 1
    training.save(10, 20)
    (training.checkpoints.step_directory(10) / MANIFEST).write_bytes(b"damaged")
    training.write(15)
    assert training.checkpoints.commit_if_complete(15, 1, RUN) is not None
    assert training.load(20) == weights(20)


def test_damage_in_the_base_is_reported_of_the_base(training: Training) -> None:
    training.save(10, 20)
    base = shard_path(training.checkpoints.step_directory(10), 0)
    tensor = load_index(base.parent, 0).tensors[0]
    whole = base.read_bytes()
    for tenth in range(10):
        flip(base, tensor.stored_offset + tenth * tensor.stored_bytes // 10)
        with pytest.raises(CheckpointUnreadable, match=r"step-00000010/rank-00000\.shard is damaged: tensor barely"):
            training.load(20)
        base.write_bytes(whole)
    flip(index_path(base.parent, 0), 200)
    with pytest.raises(CheckpointUnreadable, match=r"step-00000010/rank-00000\.json is damaged"):
        training.checkpoints.verify(20)


def test_damage_in_the_difference_is_reported_of_the_difference(training: Training) -> None:
    training.save(10, 20)
    path = shard_path(training.checkpoints.step_directory(20), 0)
    whole = path.read_bytes()
    for tensor in load_index(path.parent, 0).tensors[:2]:
        for tenth in range(10):
            flip(path, tensor.stored_offset + tenth * tensor.stored_bytes // 10)
            damaged = rf"step-00000020/rank-00000\.shard is damaged: tensor {tensor.entry.name}"
            with pytest.raises(CheckpointUnreadable, match=damaged):
                training.load(20)
            path.write_bytes(whole)


def test_a_base_that_is_gone_or_another_is_named(training: Training) -> None:
    training.save(10, 20)
    directory = training.checkpoints.step_directory(10)
    other = training.snapshots.slot(0, 10, tensors=weights(11))
    aside = directory.with_name("aside")
    directory.rename(aside)
    with pytest.raises(CheckpointUnavailable, match=r"step-00000010/rank-00000\.json: No such file"):
        training.load(20)
    write_shard(other, directory, run=RUN, world_size=1)
    with pytest.raises(CheckpointUnreadable, match=r"step-00000010/rank-00000\.json is no longer the base that it was"):
        training.load(20)


def test_a_base_that_does_not_read_back_is_not_built_on(training: Training) -> None:
    training.save(10)
    base = shard_path(training.checkpoints.step_directory(10), 0)
    flip(base, base.stat().st_size // 2)
    assert training.save(20).bases == ()
    assert training.load(20) == weights(20)


def test_a_base_is_never_saved_again(training: Training) -> None:
    training.save(5, generation=1)
    training.full_every = 1
    training.save(10, generation=1)
    training.full_every = 3
    training.save(20, generation=1)
    before = training.checkpoints.manifests()
    with pytest.raises(CheckpointCommitted):
        training.write(10, generation=2)
    assert training.checkpoints.manifests() == before


def test_a_late_difference_to_a_base_that_is_gone_is_not_committed(training: Training) -> None:
    training.save(10)
    training.write(20)
    training.checkpoints.kept = 1
    training.save(30, generation=2)
    assert training.checkpoints.committed() == [30]
    assert training.checkpoints.commit_if_complete(20, 1, RUN) is None


def test_one_tensor_of_a_difference_is_read_without_the_others(training: Training) -> None:
    training.save(10, 20)
    directory = training.checkpoints.step_directory(20)
    tensor = load_index(directory, 0).tensors[0]
    flip(shard_path(directory, 0), tensor.stored_bytes)  # the next tensor's first byte
    into = memoryview(bytearray(tensor.entry.nbytes))
    with ShardReader(shard_path(directory, 0)) as reader:
        reader.read(tensor, into)
    assert into == weights(20)["barely"]


@pytest.mark.parametrize("part_bytes", [1, 3, 4, 10, 100])
def test_an_earlier_state_is_sliced_whatever_parts_it_comes_in(part_bytes: int) -> None:
    data = bytes(range(50))
    parts = (memoryview(data[start : start + part_bytes]) for start in range(0, 50, part_bytes))
    earlier = Earlier(parts, 50)
    assert b"".join(bytes(earlier[start : start + 4]) for start in range(0, 50, 4)) == data
