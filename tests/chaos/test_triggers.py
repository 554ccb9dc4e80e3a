"""Reasons for a run to take a checkpoint, and to keep one."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast_checkpoint.codec.codec_registry import Compression
from holdfast_checkpoint.format.keeping import PROVEN, kept_reason
from holdfast_cli.control import ControlClient, rank_pids
from holdfast_cli.local_run.local_run import LocalRun
from holdfast_cli.run_folder.record import find_record
from holdfast_cli.settings.schema import ModeName
from holdfast_proto.v1.store_pb2 import RUN_PHASE_FINISHED
from tests.chaos.conftest import PATIENCE_S, Runs, faults, finish, until, until_step

pytestmark = pytest.mark.system

TWO_RANKS: dict[str, Any] = {
    "ranks": 2,
    "flags": ("--parallel.dp=1",),
    "steps": 100_000,
    "checkpoint_every": 0,
}
"""Options of an endless run that takes no checkpoint by itself."""


def command_line(runs: Runs, name: str) -> tuple[list[str], dict[str, str]]:
    """Return the words of ``holdfast run`` for a run without checkpoints that are due, and its environment."""
    options = runs.options(name)
    settings = ["--run", name, "--directory", str(options.directory), "--ranks", str(options.ranks)]
    settings += ["--snapshot-every", "1", "--checkpoint-every", "0", "--preset", "fast"]
    command = [sys.executable, "-m", "holdfast_cli", "run", *settings, "--", *options.command]
    return command, {**os.environ, **options.environment}


@pytest.mark.gate
@pytest.mark.safety
def test_a_run_that_is_preempted_stops_with_a_checkpoint_and_continues_from_there(
    runs: Runs, undisturbed: Path
) -> None:
    command, environment = command_line(runs, "preempted")
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if "step" in line)
        record = find_record(runs.folder, "preempted")
        until_step(ControlClient(Path(record.control), "preempted"), 3)
        process.send_signal(signal.SIGUSR1)  # as `sbatch --signal=B:USR1@120` does, and SIGTERM follows
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert "stopped after step" in output.splitlines()[-1]
    [left_step] = runs.checkpoints("preempted")
    assert not runs.processes()

    with runs.run("preempted", hurry=True, checkpoint_every=0) as local:
        assert until_step(local, left_step + 1).generation == 2
        assert finish(local, undisturbed, runs, "preempted").restarts == 0


def test_checkpoints_are_taken_after_some_time_and_when_the_agent_has_to_end(runs: Runs) -> None:
    with runs.run("by-time", **TWO_RANKS, checkpoint_every_minutes=1 / 60) as local:
        first = until(local, lambda status: status.newest_checkpoint >= 0).newest_checkpoint
        assert first in runs.checkpoints("by-time")
        agent = local.stack.pids().get("agent")
        assert agent is not None
        os.kill(agent, signal.SIGTERM)
        status = local.wait(timeout_s=PATIENCE_S)
        assert (status.phase, status.restarts) == (RUN_PHASE_FINISHED, 0)
        assert not faults(local)
    assert status.left_step == max(runs.checkpoints("by-time")) >= first


def test_a_loss_spike_has_the_last_good_checkpoint_kept(runs: Runs) -> None:
    environment = {**runs.options("spike").environment, "PACED_ODD": "spike@33-100000"}
    # Always compress, even if the writers have to wait for a core. A checkpoint that is stored raw is a full one.
    checkpoints: dict[str, Any] = {
        "checkpoint_every": 14,
        "checkpoints_kept": 1,
        "checkpoint_compression": Compression.ALWAYS,
    }
    with runs.run("spike", steps=60, environment=environment, **checkpoints) as local:
        until(local, lambda _: bool(kept(runs, "spike")))
        runs.hurry("spike")
        assert local.wait(timeout_s=PATIENCE_S).phase == RUN_PHASE_FINISHED
    [(step, reason)] = kept(runs, "spike").items()
    assert step < 32
    assert reason.startswith("loss spike")
    # All others are gone, except the newest one, the newest one that a finite loss has followed, and the full one on
    # which these are based.
    left = runs.checkpoints("spike")
    proven = [one for one in left if (runs.final_checkpoint("spike", one) / PROVEN).exists()][-1:]
    assert {step, 59} <= set(left) <= {13, step, 59, *proven}


def kept(runs: Runs, name: str) -> dict[int, str]:
    """Return the reason of each checkpoint that is kept."""
    reasons = {step: kept_reason(runs.final_checkpoint(name, step)) for step in runs.checkpoints(name)}
    return {step: reason for step, reason in reasons.items() if reason}


@pytest.fixture(scope="module")
def observed(runs: Runs) -> Iterator[LocalRun]:
    """Yield an observed run that takes no checkpoint by itself."""
    with runs.run("observed", **TWO_RANKS, mode=ModeName.OBSERVE) as local:
        until_step(local, 6)
        yield local


def test_a_checkpoint_can_be_requested(runs: Runs, observed: LocalRun) -> None:
    known = observed.control.incidents()
    until_step(observed, observed.status().newest_step + 1)
    step = observed.control.take_checkpoint()
    until(observed, lambda status: status.newest_checkpoint >= step)
    assert step in runs.checkpoints("observed")
    assert [incident.id for incident in observed.control.incidents()] == [incident.id for incident in known]


def test_what_ranks_hold_in_memory_is_made_durable_when_one_of_them_hangs(runs: Runs, observed: LocalRun) -> None:
    before = until(observed, lambda status: status.newest_snapshot > status.newest_checkpoint)
    stopped = rank_pids(observed.status())[1]
    os.kill(stopped, signal.SIGSTOP)
    status = until(observed, lambda status: status.newest_checkpoint >= before.newest_snapshot)
    assert status.newest_checkpoint == status.newest_snapshot
    assert status.restarts == 0
    os.kill(stopped, signal.SIGCONT)
