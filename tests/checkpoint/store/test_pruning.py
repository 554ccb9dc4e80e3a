"""Checkpoints of a directory that are kept, and those that newer ones replace."""

from pathlib import Path

import pytest

from holdfast_checkpoint.checkpoint_errors import CheckpointUnavailable
from holdfast_checkpoint.format.keeping import KEPT, PROVEN, keep, kept_reason, prove, release
from holdfast_checkpoint.format.manifest import MANIFEST, Manifest
from holdfast_checkpoint.format.shard_index import shard_path
from holdfast_checkpoint.store.directory import CheckpointDirectory
from tests.checkpoint.conftest import SavedFolder


def test_newest_are_kept_and_what_is_older_goes(checkpoints: SavedFolder) -> None:
    for step in (10, 20, 30):
        checkpoints.save(step)
    assert checkpoints.committed() == [20, 30]
    checkpoints.write(0, 35)
    checkpoints.write(0, 45)
    (checkpoints.step_directory(30) / MANIFEST).write_bytes(b"damaged")
    checkpoints.save(40)
    assert checkpoints.committed() == [20, 40]
    names = sorted(path.name for path in checkpoints.path.iterdir())
    # 30 may be readable again later, the manifest of 35 may have been moved away, and 45 can be completed.
    assert names == ["step-00000020", "step-00000030", "step-00000035", "step-00000040", "step-00000045"]
    checkpoints.save(50)
    checkpoints.save(60)
    assert sorted(path.name for path in checkpoints.path.iterdir()) == ["step-00000050", "step-00000060"]


def test_a_marked_checkpoint_stays_until_it_is_released(checkpoints: SavedFolder) -> None:
    directory = checkpoints.step_directory(10)
    with pytest.raises(CheckpointUnavailable):
        keep(directory, "nothing is there yet")
    checkpoints.save(10)
    keep(directory, "loss spike at step 12")
    keep(directory, "a later one")
    assert kept_reason(directory) == "loss spike at step 12"
    for step in (20, 30, 40):
        checkpoints.save(step)
    assert checkpoints.committed() == [10, 30, 40]
    assert checkpoints.verify(10).step == 10
    release(directory)
    assert kept_reason(directory) is None
    checkpoints.save(50)
    assert checkpoints.committed() == [40, 50]


def test_the_newest_proven_checkpoint_stays_until_a_newer_one_is_proven(checkpoints: SavedFolder) -> None:
    with pytest.raises(CheckpointUnavailable):
        prove(checkpoints.step_directory(10), 11)
    for step in (10, 20):
        checkpoints.save(step)
        checkpoints.prove(step, step + 1)
    for step in (30, 40, 50):
        checkpoints.save(step)
    assert checkpoints.committed() == [20, 40, 50], "the older proven one went with its time"
    assert checkpoints.verify(20).step == 20
    checkpoints.prove(50, 51)
    (checkpoints.step_directory(50) / PROVEN).write_bytes(b"damaged")
    assert checkpoints.proven([20, 40, 50]) == {20}
    checkpoints.save(60)
    assert checkpoints.committed() == [20, 50, 60], "a damaged file proves nothing"
    checkpoints.prove(60, 61)
    (checkpoints.step_directory(60) / PROVEN).write_bytes(b"damaged")
    checkpoints.prove(60, 61)
    checkpoints.save(70)
    assert checkpoints.committed() == [60, 70]


def test_a_damaged_mark_still_keeps(checkpoints: SavedFolder) -> None:
    checkpoints.save(10)
    (checkpoints.step_directory(10) / KEPT).write_text("?")
    for step in (20, 30):
        checkpoints.save(step)
    assert checkpoints.committed() == [10, 20, 30]


def test_later_steps_of_an_earlier_generation_stay(checkpoints: SavedFolder) -> None:
    for step in (20, 30, 40):
        checkpoints.save(step, generation=1)
    checkpoints.save(25, generation=2)
    assert checkpoints.committed() == [25, 30, 40]


def test_manifest_without_its_shards_is_not_counted_and_not_removed(checkpoints: SavedFolder, tmp_path: Path) -> None:
    for step in (10, 20):
        checkpoints.save(step)
    shard = shard_path(checkpoints.step_directory(20), 1)
    shard.rename(tmp_path / "elsewhere")
    assert checkpoints.missing(20) == [str(shard)]
    checkpoints.save(30)
    assert checkpoints.committed() == [10, 20, 30], "10 and 30 are the two that are kept"
    with pytest.raises(CheckpointUnavailable, match=rf"the checkpoint of step 20 lacks {shard}"):
        checkpoints.fetch(20)
    checkpoints.save(40)
    assert checkpoints.committed() == [20, 30, 40]
    (tmp_path / "elsewhere").rename(shard)
    assert checkpoints.verify(20).step == 20


def test_checkpoint_of_the_same_generation_may_be_late(checkpoints: SavedFolder) -> None:
    for step in (30, 40, 20):
        checkpoints.save(step)
    assert checkpoints.committed() == [20, 30, 40]


def test_another_runs_checkpoints_stay(checkpoints: SavedFolder) -> None:
    checkpoints.save(10)
    other = checkpoints.load_manifest(10)
    for step in (20, 30, 40):
        checkpoints.save(step)
        if step == 20:
            renamed = Manifest(**{**vars(other), "run": "another"})
            (checkpoints.step_directory(10) / MANIFEST).write_bytes(renamed.encode())
    assert checkpoints.committed() == [10, 30, 40]


def test_keeping_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep at least 1"):
        CheckpointDirectory(tmp_path, kept=0)
