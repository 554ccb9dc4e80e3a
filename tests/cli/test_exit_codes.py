"""The table of exit codes equals that of the code, and the last line of a run fits its exit code."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from holdfast_checkpoint.format.shard_index import shard_path
from holdfast_checkpoint.format.slot_shard import write_shard
from holdfast_checkpoint.store.directory import CheckpointDirectory
from holdfast_cli.commands.run import run_name
from holdfast_cli.errors import (
    BadLossError,
    CheckpointsUnavailableError,
    CommandError,
    LastCheckpointError,
    SettingsError,
)
from holdfast_cli.settings.schema import RunSettings
from holdfast_cli.views.summary import bad_end, closing_line, ended_badly, interrupted_line, stopped_line
from holdfast_proto.exit_codes import ExitCode
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.common_pb2 import PHASE_IDLE
from holdfast_proto.v1.control_pb2 import RankView, RunStatus
from tests.cli.conftest import holdfast
from tests.support.s3_server import s3_endpoint, server
from tests.support.snapshots import Snapshots

__all__ = ["s3_endpoint", "server"]

TABLE = Path(__file__).parents[2] / "docs" / "exit-codes.md"


@pytest.fixture
def checkpoints(tmp_path: Path, snapshots: Snapshots) -> CheckpointDirectory:
    """Checkpoints of steps 10 and 20 of the run "r"."""
    directory = CheckpointDirectory(tmp_path / "checkpoints", kept=5)
    for step in (10, 20):
        write_shard(snapshots.slot(0, step), directory.step_directory(step), run="r", world_size=1)
        assert directory.commit_if_complete(step, 1, "r") is not None
    return directory


def test_the_table_names_every_code() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", TABLE.read_text(), re.MULTILINE)
    assert {(int(code), name) for code, name in rows} == {(int(code), code.name) for code in ExitCode}


def test_a_run_whose_last_checkpoint_failed_names_the_newest_good_one(checkpoints: CheckpointDirectory) -> None:
    status = RunStatus(run="r", phase=store.RUN_PHASE_FINISHED, newest_step=20)
    assert "finished" in closing_line(status, str(checkpoints.path))
    status.failed_checkpoint = 15
    assert "finished" in closing_line(status, str(checkpoints.path)), "a newer one is there"
    status.newest_step = status.failed_checkpoint = 30
    with pytest.raises(
        LastCheckpointError, match="of step 30 was not written: that of step 20 is the newest"
    ) as raised:
        closing_line(status, str(checkpoints.path))
    assert raised.value.exit_code == ExitCode.LAST_CHECKPOINT_FAILED
    shard_path(checkpoints.step_directory(20), 0).unlink()
    with pytest.raises(LastCheckpointError, match="that of step 10 is the newest"):
        closing_line(status, str(checkpoints.path))


def ended(until: int, *, done: int, in_step: int, **fields: Any) -> RunStatus:
    rank = RankView(exit=store.RankExit(code=0, step=in_step, finished=True, steps_until=until))
    return RunStatus(run="r", phase=store.RUN_PHASE_FINISHED, newest_step=done - 1, ranks=[rank], **fields)


LEFT = "r finished: the script left training"


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (ended(21, done=21, in_step=20), "r finished: 21 steps"),
        (ended(0, done=1, in_step=0), "r finished: 1 step "),
        (ended(1000, done=21, in_step=20), "r finished: the script left training after 21 of 1000 steps "),
        (ended(1000, done=21, in_step=21), "r finished: the script left training in step 21 (the last would have been"),
        (ended(0, done=21, in_step=21, planned_steps=1000), "r finished: the script left training in step 21 (the"),
        (ended(1000, done=21, in_step=20, resumed_step=9), f"{LEFT} after 21 of 1000 steps, resumed at step 10 "),
        (ended(21, done=21, in_step=-1, resumed_step=20), "r was finished already: all 21 steps had been done by an e"),
        (ended(99, done=21, in_step=-1, resumed_step=20), "r finished: the script made no step after step 20, from wh"),
    ],
)
def test_the_last_line_says_what_the_script_has_done(
    status: RunStatus, expected: str, checkpoints: CheckpointDirectory
) -> None:
    line = closing_line(status, str(checkpoints.path))
    assert line.startswith(expected)
    assert line.endswith(f" · newest checkpoint: step 20, in {checkpoints.path}")


def test_the_last_line_names_no_checkpoint_that_does_not_exist(tmp_path: Path) -> None:
    status = ended(1000, done=21, in_step=20, newest_snapshot=-1)
    line = closing_line(status, str(tmp_path / "checkpoints"))
    assert line.endswith(" · no checkpoint was written")


def test_a_run_whose_last_steps_no_checkpoint_holds_says_which_and_has_a_code_of_its_own(
    checkpoints: CheckpointDirectory, tmp_path: Path
) -> None:
    status = ended(1000, done=24, in_step=24, newest_snapshot=19)
    with pytest.raises(LastCheckpointError, match=r"; steps 21 to 23 are in no checkpoint$"):
        closing_line(status, str(checkpoints.path))
    nowhere = str(tmp_path / "none")
    with pytest.raises(LastCheckpointError, match=r" · no checkpoint was written; steps 0 to 23 are in no checkpoint$"):
        closing_line(status, nowhere)
    status.newest_snapshot = -1  # the script has given no state to save
    assert closing_line(status, nowhere).endswith(" · no checkpoint was written")


def test_ranks_that_left_in_different_steps_are_said_to_have_done_so(checkpoints: CheckpointDirectory) -> None:
    status = ended(300, done=21, in_step=20)
    status.ranks.add(rank=1).exit.CopyFrom(store.RankExit(code=0, step=299, phase=PHASE_IDLE, steps_until=300))
    with pytest.raises(LastCheckpointError) as caught:
        closing_line(status, str(checkpoints.path))
    line = str(caught.value)
    assert line.startswith("r finished: the ranks left training in different steps, 20 to 299 ")
    assert line.endswith("; steps 21 to 299 are in no checkpoint")
    status = ended(300, done=21, in_step=20)
    status.ranks.add(rank=1)  # nobody waited for its exit
    assert "after 21 of 300 steps" in closing_line(status, str(checkpoints.path))


def test_an_interrupted_run_says_what_is_lost(checkpoints: CheckpointDirectory, tmp_path: Path) -> None:
    def line(newest_step: int, place: Path = checkpoints.path) -> str:
        return interrupted_line(RunStatus(run="r", newest_step=newest_step), str(place))

    kept = f"newest checkpoint: step 20, in {checkpoints.path}"
    assert line(43) == f"r stopped after step 43; {kept}; 23 steps are lost"
    assert line(21) == f"r stopped after step 21; {kept}; 1 step is lost"
    assert line(20) == f"r stopped after step 20; {kept}; no step is lost"
    assert line(3, tmp_path / "none") == "r stopped after step 3; there is no checkpoint, so 4 steps are lost"
    assert line(-1) == ""


def test_a_run_that_stopped_without_its_last_checkpoint_has_the_same_code(checkpoints: CheckpointDirectory) -> None:
    status = RunStatus(run="r", phase=store.RUN_PHASE_FINISHED, newest_step=30, left_step=30)
    with pytest.raises(LastCheckpointError, match=r"that of step 20 is the newest .* --preemption-grace-s"):
        stopped_line(status, str(checkpoints.path))


def test_a_run_that_stopped_with_a_bad_loss_is_not_said_to_continue(checkpoints: CheckpointDirectory) -> None:
    status = RunStatus(run="r", phase=store.RUN_PHASE_FINISHED, newest_step=20, left_step=20)
    place = str(checkpoints.path)
    assert "continues from its last checkpoint" in stopped_line(status, place)
    assert stopped_line(status, place, is_bad=True) == "r stopped after step 20, as asked"


FAILED = RunStatus(run="r", phase=store.RUN_PHASE_FAILED, newest_step=-1, outcome="the run was not started: no file")
FAILED.newest_incident.state, FAILED.newest_incident.verdict.message = store.INCIDENT_STATE_NOTED, "a digest differs"


@pytest.mark.parametrize(
    ("changes", "kind", "code", "line"),
    [
        ({}, CommandError, ExitCode.FAILED, "run r failed: the run was not started: no file (logs: logs)"),
        (
            {"refused": True},
            CheckpointsUnavailableError,
            ExitCode.CHECKPOINTS_UNAVAILABLE,
            "run r was not started: no file (logs: logs)",
        ),
        (
            {"outcome": "stopped at step 9", "stopped_by_loss": store.LOSS_TIER_SPIKE},
            BadLossError,
            ExitCode.BAD_LOSS,
            "run r failed: stopped at step 9 (logs: logs)",
        ),
        (
            {"newest_incident": store.Incident(verdict=store.Verdict(kind=store.VERDICT_KIND_BAD_CONFIGURATION))},
            SettingsError,
            ExitCode.CONFIGURATION,
            "run r failed: the run was not started: no file (logs: logs)",
        ),
    ],
)
def test_the_end_of_a_run_has_the_code_of_its_reason(
    changes: dict[str, Any], kind: type, code: ExitCode, line: str
) -> None:
    status = RunStatus(**changes)
    merged = RunStatus.FromString(FAILED.SerializeToString() + status.SerializeToString())
    error = ended_badly(merged, Path("logs"), "nowhere")
    assert (type(error), error.exit_code, str(error)) == (kind, code, line)


def test_a_start_without_a_file_of_its_histories_has_the_code_of_unavailable_checkpoints(tmp_path: Path) -> None:
    step = tmp_path / "checkpoints" / "history-0003" / "step-00000030"
    step.mkdir(parents=True)
    (step / "manifest.json").write_text("{}")
    words = ["--directory", str(tmp_path / "runs"), "--checkpoints", str(tmp_path / "checkpoints"), "--", "true"]
    for name in ([], ["--run", "r"]):
        refused = holdfast("run", *name, *words)
        assert refused.exit_code == ExitCode.CHECKPOINTS_UNAVAILABLE, refused.output
        assert "history-0003.json is missing, and history-0003 is there: bring it back" in refused.stderr
        assert "nothing was started; start the run again when the files are back" in refused.stderr
        assert refused.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_another_name_is_refused_before_anything_starts(checkpoints: CheckpointDirectory) -> None:
    command = ["run", "--run", "other", "--checkpoints", str(checkpoints.path), "--", "true"]
    refused = holdfast(*command)
    assert refused.exit_code == ExitCode.CONFIGURATION
    assert "belongs to run r: use --run r to continue it, --adopt" in refused.output


def test_a_run_without_a_name_takes_that_of_its_checkpoints(checkpoints: CheckpointDirectory) -> None:
    location = str(checkpoints.path)
    assert run_name(RunSettings(checkpoint_directory=location)) == "r"
    assert run_name(RunSettings(checkpoint_directory=location, run="r")) == "r"
    assert run_name(RunSettings(checkpoint_directory=location, run="x", adopt=True)) == "x"
    shutil.rmtree(checkpoints.path)
    assert run_name(RunSettings(checkpoint_directory=location)) is None


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("s3://no-such-bucket/run", "no such bucket or folder: create it or correct --checkpoints"),
        ("s3://no%such%bucket/run", "no valid name of a bucket: correct --checkpoints"),
        ("s3://", "names no bucket: give s3://BUCKET/PREFIX"),
    ],
)
def test_a_place_of_checkpoints_that_cannot_be_is_a_wrong_setting(server: str, location: str, reason: str) -> None:
    refused = holdfast("run", "--checkpoints", location, "--", "true")
    assert refused.exit_code == ExitCode.CONFIGURATION
    assert refused.stderr == f"holdfast: --checkpoints {location}: {reason}\n"


def test_from_scratch_and_adopt_exclude_each_other() -> None:
    refused = holdfast("run", "--from-scratch", "--adopt", "--", "true")
    assert refused.exit_code == ExitCode.CONFIGURATION
    assert "exclude each other" in refused.output


def test_the_end_says_since_when_the_loss_was_not_finite() -> None:
    status = RunStatus(run="r", phase=store.RUN_PHASE_FINISHED, newest_step=30, finite_loss_step=12)
    assert bad_end(status) == ""
    status.nonfinite_since = 14
    expected = "the loss was not finite from step 14 to the end: the last finite loss was at step 12"
    assert bad_end(status) == expected
    status.ClearField("finite_loss_step")
    assert bad_end(status) == "the loss was not finite from step 14 to the end: no loss was finite"
