import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from holdfast_checkpoint.processes import process_state
from holdfast_cli.demo.faults import FaultInjector, Hang, Kill
from holdfast_proto.v1.common_pb2 import PHASE_DATA, PHASE_FORWARD_BACKWARD
from holdfast_proto.v1.control_pb2 import RankView, RunStatus
from holdfast_proto.v1.store_pb2 import (
    INCIDENT_STATE_OPEN,
    INCIDENT_STATE_RECOVERED,
    LIFE_EXITED,
    RUN_PHASE_STARTING,
)
from tests.cli.conftest import WaitFor
from tests.support.statuses import healthy

RANK = """
import sys, time
from pathlib import Path
from holdfast_proto.black_box import BlackBoxWriter
box = BlackBoxWriter(Path(sys.argv[1]), run="r", generation=1, rank=0, world_size=1)
box.moment(7, int(sys.argv[2]), 1)
print("ready", flush=True)
time.sleep(600)
"""


class Rank:
    """A process with a black box that says in which phase it is."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[str] | None = None

    def start(self, phase: int) -> int:
        arguments = [sys.executable, "-c", RANK, str(self._directory / "black.box"), str(phase)]
        self._process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
        return self._process.pid

    def end(self) -> int:
        if self._process is None:
            return 0
        self._process.kill()
        code = self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    rank = Rank(tmp_path)
    yield rank
    rank.end()


def test_kill_kills_and_tells_when(rank: Rank) -> None:
    pid = rank.start(PHASE_FORWARD_BACKWARD)
    assert Kill(0, 5).strike(RankView(pid=pid)) is not None
    assert rank.end() == -signal.SIGKILL


def test_hang_stops_a_rank_whose_black_box_says_that_it_is_in_a_step(rank: Rank) -> None:
    pid = rank.start(PHASE_FORWARD_BACKWARD)
    assert Hang(0, 5).strike(RankView(pid=pid, phase=PHASE_FORWARD_BACKWARD)) is not None
    assert process_state(pid) == "T"


def test_hang_lets_a_rank_go_on_if_the_status_was_older_than_its_black_box(rank: Rank, wait_for: WaitFor) -> None:
    pid = rank.start(PHASE_DATA)
    assert Hang(0, 5).strike(RankView(pid=pid, phase=PHASE_FORWARD_BACKWARD)) is None
    wait_for(lambda: process_state(pid) != "T", "it goes on")


def test_hang_does_not_touch_a_rank_that_is_between_steps() -> None:
    assert Hang(0, 5).strike(RankView(pid=os.getpid(), phase=PHASE_DATA)) is None


def test_no_fault_hits_a_process_that_is_gone(rank: Rank) -> None:
    pid = rank.start(PHASE_FORWARD_BACKWARD)
    rank.end()
    assert Kill(0, 5).strike(RankView(pid=pid)) is None
    assert Hang(0, 5).strike(RankView(pid=pid, phase=PHASE_FORWARD_BACKWARD)) is None


@dataclass
class Noted:
    """A fault that does nothing but remember whom it hit."""

    rank: int
    after_step: int
    kind: str = "noted"
    plan: str = "to be noted"
    hits: list[int] = field(default_factory=list)

    def strike(self, rank: RankView) -> float | None:
        self.hits.append(rank.pid)
        return 50.0 * len(self.hits)


def status_at(step: int, *, answered_unix_s: float = 0.0, is_open: bool = False) -> RunStatus:
    status = healthy()
    status.newest_step = step
    if answered_unix_s:
        status.newest_incident.detected_unix_s = answered_unix_s
        status.newest_incident.state = INCIDENT_STATE_OPEN if is_open else INCIDENT_STATE_RECOVERED
    return status


def test_faults_strike_in_order_each_once_and_only_when_the_run_is_well_again() -> None:
    first, second = Noted(3, after_step=10), Noted(1, after_step=20)
    injector = FaultInjector([first, second])
    injector.observe(status_at(9))
    assert first.hits == []
    injector.observe(status_at(10))
    assert first.hits == [1003]
    injector.observe(status_at(25))
    injector.observe(status_at(25, answered_unix_s=51.0, is_open=True))
    assert second.hits == []
    injector.observe(status_at(25, answered_unix_s=51.0))
    injector.observe(status_at(26, answered_unix_s=51.0))
    assert (first.hits, second.hits) == ([1003], [1001])
    assert [(fault.rank, fault.unix_s) for fault in injector.injected] == [(3, 50.0), (1, 50.0)]


def test_no_fault_strikes_while_a_generation_starts_or_after_its_rank_has_exited() -> None:
    fault = Noted(3, after_step=10)
    injector = FaultInjector([fault])
    starting = status_at(30)
    starting.phase = RUN_PHASE_STARTING
    injector.observe(starting)
    gone = status_at(30)
    gone.ranks[3].life = LIFE_EXITED
    injector.observe(gone)
    assert fault.hits == []
