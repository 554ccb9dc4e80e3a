"""Checkpoints whose files are away for a while: real runs refuse, wait, or start over, and none is lost."""

import shutil
from pathlib import Path

import pytest

from holdfast_agent.checkpoint import CheckpointDirectory
from holdfast_agent.checkpoint_differences import differences
from holdfast_proto.v1.store_pb2 import RUN_PHASE_FAILED, RUN_PHASE_FINISHED
from tests.chaos.conftest import PATIENCE_S, STEPS, UNDISTURBED, Runs


@pytest.fixture
def finished(undisturbed: Path, tmp_path: Path) -> Path:
    """The checkpoints of a finished run."""
    checkpoints = tmp_path / "checkpoints"
    shutil.copytree(undisturbed.parent, checkpoints)
    return checkpoints


def move_shards_away(checkpoints: Path, elsewhere: Path) -> list[tuple[Path, Path]]:
    """Move all shards, as a folder does that is not mounted; return from where to where."""
    elsewhere.mkdir()
    moved = []
    for path in sorted(checkpoints.rglob("*.shard")):
        target = elsewhere / f"{path.parent.name}-{path.name}"
        shutil.move(path, target)
        moved.append((path, target))
    return moved


def test_a_start_without_the_shards_is_refused_and_with_them_goes_on(
    runs: Runs, undisturbed: Path, finished: Path, tmp_path: Path
) -> None:
    before = CheckpointDirectory(finished, kept=1).manifests()
    moved = move_shards_away(finished, tmp_path / "elsewhere")
    with runs.run(UNDISTURBED, hurry=True, checkpoint_directory=finished) as local:
        status = local.wait(timeout_s=PATIENCE_S)
    assert status.phase == RUN_PHASE_FAILED, "it has trained from the seed"
    assert "rank-00000.shard" in status.outcome
    assert "--from-scratch" in status.outcome
    assert CheckpointDirectory(finished, kept=1).manifests() == before, "good manifests were withdrawn"

    for path, target in moved:
        shutil.move(target, path)
    assert CheckpointDirectory(finished, kept=1).verify(STEPS - 1).step == STEPS - 1
    with runs.run(UNDISTURBED, hurry=True, checkpoint_directory=finished) as local:
        status = local.wait(timeout_s=PATIENCE_S)
    assert status.phase == RUN_PHASE_FINISHED, status.outcome
    assert differences(undisturbed, finished / undisturbed.name) == []
    assert CheckpointDirectory(finished, kept=1).manifests() == before
