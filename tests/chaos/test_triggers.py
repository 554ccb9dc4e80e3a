"""What makes a run take a checkpoint, and keep one."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from holdfast_cli.control import ControlClient
from holdfast_cli.run_record import find_record
from holdfast_proto.checkpoint.keeping import kept_reason
from holdfast_proto.v1.store_pb2 import MODE_OBSERVE, RUN_PHASE_FINISHED
from tests.chaos.conftest import CHECKPOINT_EVERY, PATIENCE_S, Runs, finish, until, until_step


def command_line(runs: Runs, name: str) -> tuple[list[str], dict[str, str]]:
    """Return ``holdfast run`` for one of the runs, and its environment."""
    options = runs.options(name)
    settings = ["--run", name, "--directory", str(options.directory), "--ranks", str(options.ranks)]
    settings += ["--snapshot-every", "1", "--checkpoint-every", str(options.checkpoint_every), "--preset", "fast"]
    command = [sys.executable, "-m", "holdfast_cli", "run", *settings, "--", *options.command]
    return command, {**os.environ, **options.environment}


def test_a_run_that_is_preempted_stops_with_a_checkpoint_and_goes_on_from_there(runs: Runs, undisturbed: Path) -> None:
    command, environment = command_line(runs, "preempted")
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if "steps" in line)
        record = find_record(runs.folder, "preempted")
        until_step(ControlClient(Path(record.control), "preempted"), 3)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert "stopped after step" in output.splitlines()[-1]
    first = max(runs.checkpoints("preempted"))
    assert (first + 1) % CHECKPOINT_EVERY  # of no step that was due for one
    assert not runs.processes()

    with runs.run("preempted") as local:
        until_step(local, first + 4)
        agent = local.pid_of("agent")
        assert agent is not None
        os.kill(agent, signal.SIGTERM)
        status = local.wait(timeout_s=PATIENCE_S)
    assert (status.phase, status.restarts) == (RUN_PHASE_FINISHED, 0)
    assert status.left_step == max(runs.checkpoints("preempted")) > first

    with runs.run("preempted") as local:
        assert until_step(local, status.left_step + 1).generation == 3
        finish(local, undisturbed, runs, "preempted")


def test_a_checkpoint_is_taken_after_some_minutes(runs: Runs) -> None:
    with runs.run("by-time", checkpoint_every=0, checkpoint_every_minutes=1 / 60) as local:
        status = until(local, lambda status: status.newest_checkpoint >= 0)
        assert status.newest_checkpoint in runs.checkpoints("by-time")
        assert not local.incidents()


def test_a_loss_spike_has_the_last_good_checkpoint_kept(runs: Runs) -> None:
    environment = {**runs.options("spike").environment, "PACED_SPIKE_FROM": "33"}
    with runs.run("spike", steps=60, environment=environment, checkpoint_every=14, checkpoints_kept=1) as local:
        until(local, lambda _: bool(kept(runs, "spike")))
        runs.hurry("spike")
        assert local.wait(timeout_s=PATIENCE_S).phase == RUN_PHASE_FINISHED
    [(step, reason)] = kept(runs, "spike").items()
    assert step < 32
    assert reason.startswith("loss spike")
    # All others are gone but the newest, and the full one to which these two are differences.
    assert {step, 59} <= set(runs.checkpoints("spike")) <= {13, step, 59}


def kept(runs: Runs, name: str) -> dict[int, str]:
    """Return why each checkpoint is kept that is."""
    reasons = {step: kept_reason(runs.final_checkpoint(name, step)) for step in runs.checkpoints(name)}
    return {step: reason for step, reason in reasons.items() if reason}


def test_what_ranks_hold_in_memory_is_made_durable_when_one_of_them_hangs(runs: Runs) -> None:
    with runs.run("suspicion", checkpoint_every=0, mode=MODE_OBSERVE) as local:
        until_step(local, 6)
        os.kill(local.rank_pids()[1], signal.SIGSTOP)
        status = until(local, lambda status: status.newest_checkpoint >= 5)
        assert status.newest_checkpoint == status.newest_snapshot
        assert status.restarts == 0
