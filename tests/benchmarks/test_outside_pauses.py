"""Pauses from outside, tested on processes that only sleep."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.odd_runs.outside import RESUME_ALL_BUT_ONE, THEN_STOP_ONE, Target, cause

pytestmark = pytest.mark.system

STOPPED, TRACED, SLEEPING = "T", "t", "S"
PATIENCE_S = 10.0


@pytest.fixture
def target() -> Iterator[Target]:
    processes = [subprocess.Popen(["sleep", "60"]) for _ in range(4)]
    pids = [process.pid for process in processes]
    yield Target(dict(enumerate(pids)), {"agent": pids[0], "daemon": pids[0], "redis": pids[3]}, pids, lasts_s=0.3)
    for process in processes:
        process.kill()
        process.wait()


def states(target: Target) -> list[str]:
    return [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in target.tree]


def reach(target: Target, wanted: list[str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while states(target) != wanted and time.monotonic() < deadline:
        time.sleep(0.01)
    assert states(target) == wanted


@pytest.mark.parametrize(
    "activity", ["stop ranks", "stop ranks shuffled", "stop tree", "stop sidecar and ranks", "stop redis"]
)
def test_a_control_runs_again_after_its_pause(target: Target, activity: str) -> None:
    cause(target, activity, twin_activity=None)
    reach(target, [SLEEPING] * 4)
    (pause,) = target.pauses
    assert pause.ended_s is not None
    assert pause.ended_s - pause.began_s >= target.lasts_s


def test_a_twin_stays_stopped(target: Target) -> None:
    cause(target, "stop two ranks", twin_activity="stop two ranks")
    reach(target, [SLEEPING, STOPPED, STOPPED, SLEEPING])
    cause(target, "stop ranks", twin_activity="stop ranks")
    reach(target, [STOPPED] * 4)


@pytest.mark.parametrize("activity", ["stop tree", "suspend thrice"])
def test_one_rank_stays_stopped_when_all_others_continue(target: Target, activity: str) -> None:
    cause(target, activity, twin_activity=RESUME_ALL_BUT_ONE)
    reach(target, [SLEEPING, STOPPED, SLEEPING, SLEEPING])
    assert target.pauses[-1].ended_s is None


def test_one_rank_is_stopped_after_a_pause_that_harms_no_rank(target: Target) -> None:
    cause(target, "stop agent", twin_activity=THEN_STOP_ONE)
    reach(target, [SLEEPING, STOPPED, SLEEPING, SLEEPING])
    assert target.pauses[-1].rank == 1


def test_a_debugger_holds_a_rank_and_releases_it(target: Target) -> None:
    cause(target, "trace rank 1", twin_activity=None)
    reach(target, [SLEEPING] * 4)
    (pause,) = target.pauses
    assert pause.ended_s is not None
    assert pause.ended_s - pause.began_s >= target.lasts_s / 2


def test_a_debugger_that_stays_holds_all_ranks(target: Target) -> None:
    cause(target, "trace ranks", twin_activity="trace ranks")
    reach(target, [TRACED] * 4)
