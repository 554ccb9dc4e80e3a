"""Fault after fault, of every kind, at random moments. The run must end as if nothing had happened."""

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast_cli.control import rank_pids
from holdfast_cli.local_run.local_run import LocalRun
from holdfast_proto.v1.store_pb2 import RUN_PHASE_RUNNING
from tests.chaos.conftest import RANKS, Runs, finish, until, until_step
from tests.support.local_runs import restart_redis, warm_parent_pid

pytestmark = pytest.mark.system

SEED = 20
FAULTS = 24
LONG = 1500
"""Number of steps: more than are trained before the last fault."""


def kill_rank(local: LocalRun, dice: random.Random) -> None:
    os.kill(rank_pids(local.status())[dice.randrange(RANKS)], signal.SIGKILL)


def stop_rank(local: LocalRun, dice: random.Random) -> None:
    os.kill(rank_pids(local.status())[dice.randrange(RANKS)], signal.SIGSTOP)


def kill_warm_parent(local: LocalRun, dice: random.Random) -> None:
    pid = warm_parent_pid(local)
    if pid:
        os.kill(pid, signal.SIGKILL)


def kill_component(local: LocalRun, dice: random.Random) -> None:
    pid = local.stack.pids().get(dice.choice(["agent", "daemon"]))
    if pid:
        os.kill(pid, signal.SIGKILL)


def kill_redis(local: LocalRun, dice: random.Random) -> None:
    restart_redis(local, empty=dice.random() < 0.5)


HARMS: list[Callable[[LocalRun, random.Random], None]] = [
    kill_rank,
    stop_rank,
    kill_warm_parent,
    kill_component,
    kill_redis,
]


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_run_outlives_many_faults_of_every_kind(runs: Runs) -> None:
    dice = random.Random(SEED)
    with runs.run("calm", steps=LONG, hurry=True) as local:
        local.wait(timeout_s=900)
    with runs.run("rough", steps=LONG) as local:
        until_step(local, 5)
        for _ in range(FAULTS):
            newest = until(local, lambda status: status.phase == RUN_PHASE_RUNNING and len(status.ranks) == RANKS)
            with contextlib.suppress(ProcessLookupError):  # the fault before has just ended it
                dice.choice(HARMS)(local, dice)
            time.sleep(dice.expovariate(1.0))  # the next may come before this one is over
            until(local, lambda status, step=newest.newest_step: status.newest_step > step)  # type: ignore[misc]
        finish(local, Path(runs.final_checkpoint("calm", LONG - 1)), runs, "rough", step=LONG - 1)
        assert local.status().restarts > 0 or local.control.incidents()
