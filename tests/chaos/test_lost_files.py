"""Checkpoints whose files are missing for a while. Real runs refuse, wait or start over, and no checkpoint is lost."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from holdfast_checkpoint.store.directory import CheckpointDirectory
from holdfast_cli.commands.demo import state_differences
from holdfast_cli.control import rank_pids
from holdfast_cli.errors import SettingsError
from holdfast_proto.snapshot import Slot
from holdfast_proto.v1.store_pb2 import RUN_PHASE_FAILED, RUN_PHASE_FINISHED, Incident
from tests.chaos.conftest import CHECKPOINT_EVERY, PATIENCE_S, STEPS, UNDISTURBED, Runs, finish, until

pytestmark = pytest.mark.system


@pytest.fixture
def finished(undisturbed: Path, tmp_path: Path) -> Path:
    """The checkpoints of a finished run."""
    checkpoints = tmp_path / "checkpoints"
    shutil.copytree(undisturbed.parent, checkpoints)
    return checkpoints


def move_shards_away(checkpoints: Path, elsewhere: Path) -> list[tuple[Path, Path]]:
    """Move all shards away, as if a folder were not mounted. Return pairs of old and new path."""
    elsewhere.mkdir()
    moved = []
    for path in sorted(checkpoints.rglob("*.shard")):
        target = elsewhere / f"{path.parent.name}-{path.name}"
        shutil.move(path, target)
        moved.append((path, target))
    return moved


@pytest.mark.gate
@pytest.mark.safety
def test_a_start_without_the_shards_is_refused_and_with_them_continues(
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
    assert state_differences(undisturbed, finished / undisturbed.name) == []
    assert CheckpointDirectory(finished, kept=1).manifests() == before


def waits(incident: Incident) -> bool:
    """Return whether an incident says that the run waits for files."""
    return incident.verdict.message.startswith("the run waits")


def test_a_run_waits_for_files_that_vanish_and_continues_when_they_are_back(
    runs: Runs, undisturbed: Path, tmp_path: Path
) -> None:
    name = "unmounted"
    with runs.run(name, checkpoints_kept=STEPS) as local:
        until(local, lambda status: status.newest_checkpoint >= CHECKPOINT_EVERY - 1)
        checkpoints = Path(local.checkpoints)
        elsewhere = tmp_path / "elsewhere"
        checkpoints.rename(elsewhere)
        committed = CheckpointDirectory(elsewhere, kept=1).manifests()
        for pid in rank_pids(local.status()).values():
            os.kill(pid, signal.SIGKILL)
        for path in local.paths.memory.rglob("*.slot"):
            with Slot(path) as slot:
                slot.invalidate()  # otherwise the run would continue from memory and read no file
        until(local, lambda _: any(map(waits, local.control.incidents())))
        before = local.status()
        after = until(local, lambda status: status.generation >= before.generation + 2)  # the run has tried again
        assert after.phase not in (RUN_PHASE_FAILED, RUN_PHASE_FINISHED)
        assert after.restarts == before.restarts, "waiting counts as no restart"

        shutil.rmtree(checkpoints, ignore_errors=True)  # what agents have made in the mount point
        elsewhere.rename(checkpoints)
        finish(local, undisturbed, runs, name)
        [incident] = [incident for incident in local.control.incidents() if waits(incident)]
    assert "the run trains" in incident.actions[-1].what
    manifests = CheckpointDirectory(checkpoints, kept=1).manifests()
    assert {step: manifests[step] for step in committed} == committed


def test_from_scratch_begins_a_history_and_leaves_the_older_one_until_there_are_enough(
    runs: Runs, undisturbed: Path, finished: Path
) -> None:
    before = CheckpointDirectory(finished, kept=1).manifests()
    options = {"checkpoint_directory": finished, "from_scratch": True, "checkpoints_kept": STEPS}
    with runs.run(UNDISTURBED, hurry=True, **options) as local:
        status = local.wait(timeout_s=PATIENCE_S)
    assert status.phase == RUN_PHASE_FINISHED, status.outcome
    assert CheckpointDirectory(finished, kept=1).manifests() == before
    assert state_differences(undisturbed, finished / "history-0002" / undisturbed.name) == []


def test_checkpoints_of_another_run_are_refused_and_adopted(runs: Runs, undisturbed: Path, finished: Path) -> None:
    shutil.rmtree(finished / undisturbed.name)
    with (
        pytest.raises(SettingsError, match=f"belongs to run {UNDISTURBED}: use --run {UNDISTURBED} .* --adopt"),
        runs.run("heir", checkpoint_directory=finished),
    ):
        pass
    with runs.run("heir", hurry=True, checkpoint_directory=finished, adopt=True, checkpoints_kept=STEPS) as local:
        status = local.wait(timeout_s=PATIENCE_S)
    assert status.phase == RUN_PHASE_FINISHED, status.outcome
    last = finished / "history-0002" / undisturbed.name
    assert state_differences(undisturbed, last) == []
    assert CheckpointDirectory(last.parent, kept=1).load_manifest(STEPS - 1).run == "heir"
