"""Runs that go on from a checkpoint, and checkpoints that cannot be used or written."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast_cli.control import ControlError
from holdfast_proto.v1.store_pb2 import (
    INCIDENT_STATE_NOTED,
    RUN_PHASE_FAILED,
    RUN_PHASE_FINISHED,
    VERDICT_KIND_CHECKPOINT_FAILED,
)
from tests.chaos.conftest import CHECKPOINT_EVERY, PATIENCE_S, STEPS, Runs, finish, until, until_step


@pytest.fixture(scope="module")
def interrupted(runs: Runs) -> Path:
    """The folder of a run that was ended after its second checkpoint."""
    with runs.run("interrupted") as local:
        until(local, lambda status: status.newest_checkpoint >= 2 * CHECKPOINT_EVERY - 1)
    return runs.folder / "interrupted" / "checkpoints"


def copy_of(interrupted: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(interrupted, tmp_path / "checkpoints"))


def test_a_run_goes_on_from_its_newest_checkpoint(runs: Runs, undisturbed: Path, interrupted: Path) -> None:
    with runs.run("interrupted") as local:
        first = until_step(local, CHECKPOINT_EVERY)
        assert first.newest_step >= 2 * CHECKPOINT_EVERY - 1
        status = finish(local, undisturbed, runs, "interrupted")
    assert status.restarts == 0


def test_a_checkpoint_with_a_flipped_byte_is_named_and_the_one_before_is_used(
    runs: Runs, undisturbed: Path, interrupted: Path, tmp_path: Path
) -> None:
    checkpoints = copy_of(interrupted, tmp_path)
    newest = sorted(checkpoints.iterdir())[-1]
    shard = newest / "rank-00001.shard"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    with runs.run("interrupted", hurry=True, checkpoint_directory=checkpoints) as local:
        status = local.wait(timeout_s=PATIENCE_S)
        incident = local.incidents()[0]
    assert status.phase == RUN_PHASE_FINISHED, status.outcome
    assert incident.verdict.kind == VERDICT_KIND_CHECKPOINT_FAILED
    assert str(shard) in incident.verdict.message
    assert incident.state == INCIDENT_STATE_NOTED


def test_a_checkpoint_without_one_of_its_shards_is_not_used(runs: Runs, interrupted: Path, tmp_path: Path) -> None:
    checkpoints = copy_of(interrupted, tmp_path)
    missing = sorted(checkpoints.iterdir())[-1] / "rank-00002.shard"
    missing.unlink()
    with runs.run("interrupted", hurry=True, checkpoint_directory=checkpoints) as local:
        status = local.wait(timeout_s=PATIENCE_S)
        incident = local.incidents()[0]
    assert status.phase == RUN_PHASE_FINISHED, status.outcome
    assert str(missing) in incident.verdict.message


def test_a_checkpoint_of_a_model_with_other_shapes_is_refused(runs: Runs, interrupted: Path, tmp_path: Path) -> None:
    config = tmp_path / "wide.toml"
    config.write_text(runs.config.read_text().replace("hidden = 64", "hidden = 96"))
    other = Runs(runs.folder, config, runs.mark)
    with other.run("interrupted", hurry=True, checkpoint_directory=copy_of(interrupted, tmp_path)) as local:
        status = local.wait(timeout_s=PATIENCE_S)
    assert status.phase == RUN_PHASE_FAILED
    assert "float32 (64, 32)" in status.outcome
    assert "float32 (96, 32)" in status.outcome
    assert "\n" not in status.outcome
    assert status.restarts == 0


def test_a_checkpoint_folder_that_cannot_be_written_is_refused_at_once(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Exception, match="--checkpoints"), runs.run("no-folder", checkpoint_directory=tmp_path / "file"):
        pass


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Path]:
    mount = tmp_path / "tmpfs"
    mount.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(mount)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting a small tmpfs needs root")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


def test_with_little_shared_memory_checkpoints_go_straight_to_disk(
    runs: Runs, undisturbed: Path, small_tmpfs: Path
) -> None:
    with runs.run("small-memory", shm_directory=small_tmpfs) as local:
        until(local, lambda status: status.newest_checkpoint >= CHECKPOINT_EVERY - 1)
        os.kill(local.rank_pids()[1], signal.SIGKILL)
        status = finish(local, undisturbed, runs, "small-memory")
        messages = [incident.verdict.message for incident in local.incidents()]
    assert status.restarts == 1
    assert any("--shm-directory" in message and str(small_tmpfs) in message for message in messages)


def test_a_full_checkpoint_folder_is_told_and_training_goes_on(runs: Runs, small_tmpfs: Path) -> None:
    with runs.run("full-disk", hurry=True, checkpoint_directory=small_tmpfs / "checkpoints") as local:
        status = local.wait(timeout_s=PATIENCE_S)
        incidents = local.incidents()
    assert status.phase == RUN_PHASE_FINISHED, status.outcome
    assert status.newest_step == STEPS - 1
    failed = [incident for incident in incidents if incident.verdict.kind == VERDICT_KIND_CHECKPOINT_FAILED]
    assert failed
    assert all("--checkpoints" in incident.verdict.message for incident in failed)
    assert status.newest_checkpoint == -1


def test_a_checkpoint_can_be_ordered(runs: Runs) -> None:
    with runs.run("ordered", checkpoint_every=0) as local:
        until_step(local, 6)
        step = local.take_checkpoint()
        until(local, lambda status: status.newest_checkpoint >= step)
        assert step in runs.checkpoints("ordered")
        try:
            assert not local.incidents()
        except ControlError:
            pytest.fail("the daemon is gone")
