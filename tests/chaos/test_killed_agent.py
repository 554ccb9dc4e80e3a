"""Agents are killed while they wait for their warm parent. Nothing is left behind, and the next agents continue."""

import contextlib
import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast_cli.control import rank_pids
from holdfast_cli.local_run.local_run import LocalRun
from holdfast_proto.run_files import AGENT_RECORDS
from holdfast_proto.v1.store_pb2 import (
    INCIDENT_STATE_RECOVERED,
    RUN_PHASE_RUNNING,
    VERDICT_KIND_DEAD_RANK,
    VERDICT_KIND_LOST_NODE,
)
from tests.chaos.conftest import RANKS, Runs, faults, until, until_step
from tests.support.coroutines import wait_until
from tests.support.local_runs import warm_parent_pid

pytestmark = pytest.mark.system

ENDLESS = 100_000
"""Number of steps: more than are trained here."""
KILLS = 3
STRIDE = 3


class WatchedRun:
    """A run, with all its warm parents and the processes that they forked."""

    def __init__(self, local: LocalRun) -> None:
        self.local = local

    def forked(self, name: str = "") -> set[int]:
        """Return the pids of warm parents, stores and ranks whose process name begins with ``name``."""
        found = set()
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                title = (entry / "cmdline").read_text() if entry.name.isdigit() else ""
                is_ours = title.startswith("holdfast: ") and f" of {self.local.options.run}" in title
                if is_ours and (entry / "comm").read_text().startswith(name):
                    found.add(int(entry.name))
        return found

    def new_parent(self, known: set[int]) -> int:
        """Wait for a warm parent that listens, and stop it. To other processes it still seems to import."""
        [pid] = wait_until(lambda: self.forked() - known, "there is another warm parent")
        wait_until(lambda: _has_socket(pid), "the warm parent listens")
        os.kill(pid, signal.SIGSTOP)
        return pid

    def kill_agent(self) -> None:
        """SIGKILL the agent and wait until the next one serves."""
        pid = self.local.stack.pids().get("agent")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: self._agent_that_serves() not in (None, pid), "there is another agent")

    def _agent_that_serves(self) -> int | None:
        self.local.look()  # the agent records this
        endpoint = self.local.stack.endpoints().get("agent")
        return endpoint.pid if endpoint else None

    def check_whole(self) -> None:
        """Check that all ranks train, once each, with one warm parent, one store and no slots of other ranks."""
        reached = until(self.local, lambda status: status.phase == RUN_PHASE_RUNNING).newest_step
        until_step(self.local, reached + STRIDE)
        assert self.forked("rank") == set(rank_pids(self.local.status()).values())
        assert len(self.forked()) == RANKS + 2
        assert len([*self.local.paths.memory.rglob("*.slot")]) == 2 * RANKS


def _has_socket(pid: int) -> bool:
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has just been closed
            if str(link.readlink()).startswith("socket:"):
                return True
    return False


@pytest.fixture
def run(runs: Runs) -> Iterator[WatchedRun]:
    # The run has a name of its own, as the logs of another test's generations would look like this one's.
    with runs.run(f"waiting-{uuid.uuid4().hex[:8]}", steps=ENDLESS, checkpoint_every=0) as local:
        yield WatchedRun(local)


@pytest.mark.soak
def test_agents_that_are_killed_while_they_wait_for_their_warm_parent_do_no_harm(run: WatchedRun) -> None:
    local = run.local
    parent = run.new_parent(set())
    for _ in range(KILLS):
        run.kill_agent()
    os.kill(parent, signal.SIGCONT)
    run.check_whole()
    assert warm_parent_pid(local) == parent
    assert (local.status().restarts, faults(local)) == (0, [])

    before = run.forked()
    os.kill(parent, signal.SIGKILL)
    parent = run.new_parent(before)
    os.kill(rank_pids(local.status())[1], signal.SIGKILL)
    wait_until((local.paths.logs / "generation-0002").exists, "the agent is about to start the ranks again")
    for _ in range(KILLS):
        run.kill_agent()
    os.kill(parent, signal.SIGCONT)
    until(local, lambda status: status.restarts == 1)
    run.check_whole()
    assert warm_parent_pid(local) == parent
    [incident] = faults(local)
    assert incident.state == INCIDENT_STATE_RECOVERED
    assert (list(incident.verdict.culprits), incident.lost_steps <= 1) == ([1], True)


def test_agents_that_are_killed_while_their_ranks_are_being_forked_leave_none_of_them(run: WatchedRun) -> None:
    local = run.local
    run.check_whole()
    for _ in range(KILLS):
        before, restarts = run.forked(), local.status().restarts
        os.kill(rank_pids(local.status())[2], signal.SIGKILL)
        wait_until(lambda known=before: run.forked("rank") - known, "a rank is there again")  # type: ignore[misc]
        run.kill_agent()
        until(local, lambda status, known=restarts: status.restarts > known)  # type: ignore[misc]
        run.check_whole()


def test_an_agent_that_finds_a_damaged_record_ends_the_ranks_and_the_run_is_restarted(runs: Runs) -> None:
    with runs.run(f"damaged-{uuid.uuid4().hex[:8]}", steps=ENDLESS, checkpoint_every=0, snapshot_every=1) as local:
        run = WatchedRun(local)
        run.check_whole()
        os.kill(rank_pids(local.status())[1], signal.SIGKILL)
        until(local, lambda status: status.restarts == 1)
        run.check_whole()
        before = run.forked()
        [record] = Path(local.paths.directory).glob(AGENT_RECORDS)
        os.truncate(record, record.stat().st_size // 2)
        run.kill_agent()
        until(local, lambda status: status.restarts == 2)
        run.check_whole()
        assert not before & run.forked()
        assert [(one.verdict.kind, one.state) for one in faults(local)] == [
            (VERDICT_KIND_DEAD_RANK, INCIDENT_STATE_RECOVERED),
            (VERDICT_KIND_LOST_NODE, INCIDENT_STATE_RECOVERED),
        ]
