"""The Redis of a run is paused while ranks train: nobody hears of their steps, and the account counts them later."""

import os
import signal
import time
from pathlib import Path

import pytest

from holdfast_proto.v1.store_pb2 import LIFE_RUNNING
from tests.chaos.conftest import Runs, expect_every_second_in, faults, status_and_age, until

pytestmark = pytest.mark.system

PAUSED_S = 8.0
"""Time for which Redis is paused: four times the lease of the daemon, so that it is no leader meanwhile."""
FLAGS = ("--parallel.pp=1", "--train.validate_every=0")


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped, as the kernel sees it."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_time_in_which_redis_was_paused_while_ranks_trained_is_productive_in_the_end(runs: Runs) -> None:
    with runs.run("paused", hurry=True, ranks=2, steps=100_000, checkpoint_every=0, flags=FLAGS) as local:
        before = until(local, lambda status: status.newest_step >= 30 and status.store_up)
        generation, pids = before.generation, [rank.pid for rank in before.ranks]
        before_unix_s, before = time.time(), local.status()
        redis = local.stack.pids()["redis"]
        os.kill(redis, signal.SIGSTOP)
        try:
            until(local, lambda _: is_stopped(redis))
            until(local, lambda status: not status.store_up)
            paused_until_s = time.monotonic() + PAUSED_S
            while time.monotonic() < paused_until_s:
                assert local.stack.pids()["redis"] == redis, "Redis was started again: it was not only paused"
                time.sleep(0.1)
            in_the_pause = local.status()
        finally:
            os.kill(redis, signal.SIGCONT)
        until(
            local,
            lambda status: (
                status.store_up
                and status.leader
                and status.newest_step > in_the_pause.newest_step + 30
                and [rank.life for rank in status.ranks] == 2 * [LIFE_RUNNING]
            ),
        )
        after, age_s = status_and_age(local, before_unix_s)
        spent_s = {use: seconds - before.time_use_s[use] for use, seconds in after.time_use_s.items()}
        assert after.generation == generation
        assert [rank.pid for rank in after.ranks] == pids
        assert not faults(local)
    expect_every_second_in({"all": sum(spent_s.values())}, age_s)
    assert age_s[0] > PAUSED_S
    # Training itself takes nearly all of the time: there is no pace, no evaluation and no checkpoint.
    assert spent_s["productive"] > 0.75 * age_s[0], spent_s
    assert spent_s["idle"] < 0.05 * PAUSED_S, spent_s
    assert spent_s["detection"] == spent_s["restart"] == spent_s["repeated_steps"] == 0.0, spent_s
