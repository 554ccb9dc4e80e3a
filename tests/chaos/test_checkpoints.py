"""Runs that continue from a checkpoint, and checkpoints that cannot be used or written."""

import os
import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast_cli.control import rank_pids
from holdfast_cli.local_run.local_run import LocalRun
from holdfast_proto.v1.store_pb2 import (
    INCIDENT_STATE_NOTED,
    RUN_PHASE_FAILED,
    RUN_PHASE_FINISHED,
    RUN_PHASE_RUNNING,
    VERDICT_KIND_CHECKPOINT_FAILED,
)
from tests.chaos.conftest import (
    CHECKPOINT_EVERY,
    PATIENCE_S,
    RANKS,
    STEPS,
    UNDISTURBED,
    Runs,
    faults,
    finish,
    until,
    until_step,
)
from tests.support.tmpfs import mounted_tmpfs

pytestmark = pytest.mark.system

KILLS = 2


@pytest.fixture
def unfinished(undisturbed: Path, tmp_path: Path) -> Path:
    """Three checkpoints of the undisturbed run, as if it had ended before its last step."""
    checkpoints = tmp_path / "checkpoints"
    shutil.copytree(undisturbed.parent, checkpoints, ignore=shutil.ignore_patterns(undisturbed.name))
    return checkpoints


@pytest.mark.gate
@pytest.mark.safety
def test_checkpoints_with_flipped_bytes_are_named_and_the_one_before_is_used(
    runs: Runs, undisturbed: Path, unfinished: Path
) -> None:
    _, older, newest = sorted(unfinished.glob("step-*"))
    damaged = [newest / "rank-00001.shard", older / "rank-00002.shard"]
    for path in damaged:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    with runs.run(UNDISTURBED, hurry=True, checkpoint_every=0, checkpoint_directory=unfinished) as local:
        first = until_step(local, 0)
        finish(local, undisturbed, runs, UNDISTURBED)
        incidents = local.control.incidents()
    assert first.newest_step >= CHECKPOINT_EVERY - 1
    assert {incident.verdict.kind for incident in incidents} == {VERDICT_KIND_CHECKPOINT_FAILED}
    assert {incident.state for incident in incidents} == {INCIDENT_STATE_NOTED}
    assert str(damaged[0]) in incidents[0].verdict.message
    assert str(damaged[1]) in incidents[-1].verdict.message


def test_a_checkpoint_of_a_model_with_other_shapes_is_refused(runs: Runs, unfinished: Path, tmp_path: Path) -> None:
    config = tmp_path / "wide.toml"
    config.write_text(runs.config.read_text().replace("hidden = 64", "hidden = 96"))
    other = Runs(runs.folder, config, runs.mark)
    with other.run(UNDISTURBED, hurry=True, checkpoint_directory=unfinished) as local:
        status = local.wait(timeout_s=PATIENCE_S)
    assert status.phase == RUN_PHASE_FAILED
    assert "float32 (64, 32)" in status.outcome
    assert "float32 (96, 32)" in status.outcome
    assert "\n" not in status.outcome
    assert status.restarts == 0


def test_a_checkpoint_folder_that_cannot_be_written_is_refused_immediately(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Exception, match="--checkpoints"), runs.run("no-folder", checkpoint_directory=tmp_path / "file"):
        pass


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Path]:
    with mounted_tmpfs(tmp_path / "tmpfs", "200k") as folder:
        yield folder


@pytest.mark.soak
def test_with_little_shared_memory_checkpoints_go_straight_to_disk(
    runs: Runs, undisturbed: Path, small_tmpfs: Path
) -> None:
    with runs.run("small-memory", shm_directory=small_tmpfs) as local:
        until(local, lambda status: status.newest_checkpoint >= CHECKPOINT_EVERY - 1)
        os.kill(rank_pids(local.status())[1], signal.SIGKILL)
        status = finish(local, undisturbed, runs, "small-memory")
        messages = [incident.verdict.message for incident in local.control.incidents()]
    assert status.restarts == 1
    assert any("--shm-directory" in message and str(small_tmpfs) in message for message in messages)


@pytest.mark.gate
def test_a_full_checkpoint_folder_is_reported_and_training_continues(runs: Runs, small_tmpfs: Path) -> None:
    directory = small_tmpfs / "checkpoints"
    with runs.run("full-disk", hurry=True, steps=10, checkpoint_every=5, checkpoint_directory=directory) as local:
        status = local.wait(timeout_s=PATIENCE_S)
        incidents = local.control.incidents()
    assert status.phase == RUN_PHASE_FINISHED, status.outcome
    assert status.newest_step == 9
    failed = [incident for incident in incidents if incident.verdict.kind == VERDICT_KIND_CHECKPOINT_FAILED]
    assert failed
    assert all("--checkpoints" in incident.verdict.message for incident in failed)
    assert status.newest_checkpoint == -1


def kill_after(local: LocalRun, step: int, rank: int) -> None:
    """Kill a rank once the run has trained a step, and wait for the restart."""
    running = until(local, lambda status: status.newest_step >= step and status.phase == RUN_PHASE_RUNNING)
    os.kill(rank_pids(local.status())[rank], signal.SIGKILL)
    until(local, lambda status: status.restarts > running.restarts)


def test_with_two_slots_a_rank_every_checkpoint_is_committed_and_a_kill_costs_no_step_before_the_newest(
    runs: Runs, undisturbed: Path
) -> None:
    dice = random.Random(3)
    with runs.run("two-slots", checkpoints_kept=STEPS) as local:
        for step in sorted(dice.sample(range(STEPS - CHECKPOINT_EVERY), KILLS)):
            kill_after(local, step, dice.randrange(RANKS))
        slots = [path.name for path in local.paths.memory.rglob("*.slot")]
        until(local, lambda status: status.newest_checkpoint == STEPS - 1 - CHECKPOINT_EVERY)
        finish(local, undisturbed, runs, "two-slots")
        incidents = faults(local)
    assert sorted(slots) == [f"rank-{rank:05}.{slot}.slot" for rank in range(RANKS) for slot in range(2)]
    assert len(incidents) == KILLS
    for incident in incidents:
        newest_due = (incident.reached_step + 1) // CHECKPOINT_EVERY * CHECKPOINT_EVERY - 1
        assert incident.resumed_step >= newest_due
    assert runs.checkpoints("two-slots") == list(range(CHECKPOINT_EVERY - 1, STEPS, CHECKPOINT_EVERY))
