"""The parts of one run are killed one after the other while it trains. The result must be that of an undisturbed run.

Each test finds the run healthy and leaves it healthy.
"""

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast_cli.commands.demo import state_differences
from holdfast_cli.control import ControlClient, rank_pids
from holdfast_cli.local_run.local_run import LocalRun
from holdfast_daemon.incidents.evidence_files import file_names
from holdfast_daemon.incidents.incident_folder import read_recording
from holdfast_daemon.replay.replaying import replay
from holdfast_proto.run_files import incidents, run_key
from holdfast_proto.v1.control_pb2 import RunStatus
from holdfast_proto.v1.store_pb2 import (
    INCIDENT_STATE_RECOVERED,
    RUN_PHASE_FINISHED,
    RUN_PHASE_RUNNING,
    VERDICT_KIND_DEAD_RANK,
    VERDICT_KIND_HUNG_COLLECTIVE,
    Incident,
)
from tests.chaos.conftest import (
    PATIENCE_S,
    RANKS,
    Runs,
    expect_every_second_in,
    faults,
    status_and_age,
    until,
    until_all_attached,
    until_step,
)
from tests.support.local_runs import restart_redis, resume_restart, suspend_restart, warm_parent_pid

pytestmark = pytest.mark.system

NAME = "faults"
ENDLESS = 100_000
"""Number of steps: more than are trained here."""
STILL_S = 3.0
"""Most time that a busy machine may add to what a fault costs."""
SCHEDULE = (f"--optimizer.warmup_steps={ENDLESS}", "--optimizer.learning_rate=3")
"""Flags of a rate that rises by 3e-5 in each step. So the result of a step does not depend on the number of steps."""
STRIDE = 3
"""Steps of a generation after which its deadlines are those of any other step."""


@dataclass(frozen=True)
class Victim:
    """The run, with its history up to the time when it was last healthy."""

    run: LocalRun
    restarts: int
    known: frozenset[str]
    """Ids of the incidents until then."""
    time_use_s: Mapping[str, float]
    """Use -> seconds of the run's wall time until then."""
    known_unix_s: float
    """Unix time of that, by the test's clock."""

    def kill_rank(self, rank: int, number: int = signal.SIGKILL) -> None:
        os.kill(rank_pids(self.run.status())[rank], number)

    def kill(self, component: str) -> int:
        """Kill the daemon or the agent; return its pid."""
        pid = self.run.stack.pids().get(component)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        return pid

    def recovered(self) -> Incident:
        """Wait until the ranks have been started again, once. Return the one incident of this restart."""
        until(self.run, lambda status: status.restarts > self.restarts and self._is_all_recovered())
        assert self.run.status().restarts == self.restarts + 1
        [incident] = self._new_incidents()
        return incident

    def spent(self) -> Mapping[str, float]:
        """Return the time used since the run was last healthy, once some new steps have ended."""
        reached = self.run.status().newest_step
        until(self.run, lambda status: is_complete(status) and status.newest_step >= reached + STRIDE)
        status, age_s = status_and_age(self.run, self.known_unix_s)
        spent_s = {use: seconds - self.time_use_s[use] for use, seconds in status.time_use_s.items()}
        expect_every_second_in({"all": math.fsum(spent_s.values())}, age_s)  # one use may be found to be another
        return spent_s

    def _is_all_recovered(self) -> bool:
        found = self._new_incidents()
        return bool(found) and all(incident.state == INCIDENT_STATE_RECOVERED for incident in found)

    def _new_incidents(self) -> list[Incident]:
        return [incident for incident in faults(self.run) if incident.id not in self.known]


def is_complete(status: RunStatus) -> bool:
    """Return whether all components run and all ranks train."""
    return status.phase == RUN_PHASE_RUNNING and status.leader and status.store_up and len(status.ranks) == RANKS


@pytest.fixture(scope="module")
def began_unix_s() -> float:
    """Unix time just before the run was created, by the tests' own clock."""
    return time.time()


@pytest.fixture(scope="module")
def endless(runs: Runs, began_unix_s: float) -> Iterator[LocalRun]:
    assert began_unix_s <= time.time()
    with runs.run(NAME, steps=ENDLESS, checkpoint_every=0, flags=SCHEDULE) as local:
        yield local


@pytest.fixture
def victim(endless: LocalRun) -> Victim:
    reached = until(endless, is_complete).newest_step
    until(endless, lambda status: is_complete(status) and status.newest_step >= reached + STRIDE)
    status = endless.status()
    known_unix_s = time.time()
    known = frozenset(incident.id for incident in endless.control.incidents())
    return Victim(endless, status.restarts, known, dict(status.time_use_s), known_unix_s)


def expect_the_time_of(incident: Incident, spent: Mapping[str, float]) -> None:
    """Check the account's time of a restart by the incident's own times."""
    detected_s = incident.detected_unix_s - incident.last_progress_unix_s
    [started_unix_s] = [action.unix_s for action in incident.actions if " starts from " in action.what]
    # On a busy machine, a step of the healthy time may have stood still, too. And the other ranks may have ended their
    # last step after the last progress of the rank that is blamed: the account counts from the later of the two.
    assert max(0.0, detected_s - STILL_S) <= spent["detection"] <= detected_s + STILL_S
    # The first step after the restart is in the incident's time, and not in that of the restart.
    least_s, most_s = (moment - incident.detected_unix_s for moment in (started_unix_s, incident.recovered_unix_s))
    assert least_s - 0.01 <= spent["restart"] <= most_s
    assert spent["repeated_steps"] > 0.0 or not incident.lost_steps
    assert spent["start_up"] == 0.0


@pytest.mark.safety
@pytest.mark.slice
def test_a_killed_rank_is_named_and_the_run_recovers(victim: Victim) -> None:
    victim.kill_rank(3)
    incident = victim.recovered()
    assert incident.verdict.kind == VERDICT_KIND_DEAD_RANK
    assert list(incident.verdict.culprits) == [3]
    assert incident.lost_steps <= 1
    assert 0 < incident.detected_unix_s < incident.recovered_unix_s
    expect_the_time_of(incident, victim.spent())
    assert "rank-00003.black_box.json" in incident.evidence


@pytest.mark.safety
@pytest.mark.slice
def test_a_stopped_rank_is_named_and_the_run_recovers(victim: Victim) -> None:
    victim.kill_rank(2, signal.SIGSTOP)
    incident = victim.recovered()
    assert incident.verdict.kind == VERDICT_KIND_HUNG_COLLECTIVE
    assert list(incident.verdict.culprits) == [2]
    assert "rank 2 is stopped" in incident.verdict.message
    assert incident.verdict.waits
    expect_the_time_of(incident, victim.spent())
    assert incident.detected_unix_s - incident.last_progress_unix_s > 1.0  # the least deadline
    dumps = [name for name in incident.evidence if name.endswith(".flight_recorder.json")]
    assert "rank-00000.flight_recorder.json" in dumps
    assert "rank-00002.flight_recorder.json" not in dumps
    assert "rank-00002.stack.txt" in incident.evidence
    folder = incidents(victim.run.paths.directory, NAME) / incident.id
    whole = {*incident.evidence, "README.txt", "incident.json", "core.json", "observations.binpb"}
    until(victim.run, lambda _: whole <= {*file_names(folder)})
    assert replay(read_recording(folder)).agrees


def test_training_continues_without_its_warm_parent_and_can_still_recover(victim: Victim) -> None:
    run = victim.run
    old, before = warm_parent_pid(run), rank_pids(run.status())
    assert old is not None
    os.kill(old, signal.SIGKILL)
    until_step(run, run.status().newest_step + 4)
    assert rank_pids(run.status()) == before
    victim.kill_rank(1)
    incident = victim.recovered()
    assert warm_parent_pid(run) not in (None, old)
    assert list(incident.verdict.culprits) == [1]
    assert "SIGKILL" in incident.verdict.message  # the agent reaps it, as the orphan has become its child


def test_training_continues_while_the_daemon_is_dead(victim: Victim) -> None:
    before = rank_pids(victim.run.status())
    suspend_restart(victim.run, "daemon")
    victim.kill("daemon")
    os.kill(before[0], signal.SIGKILL)  # while no agent is there to see it
    resume_restart(victim.run, "daemon")
    assert list(victim.recovered().verdict.culprits) == [0]


def test_a_standby_takes_over(victim: Victim, tmp_path: Path) -> None:
    run = victim.run
    control = run.paths.runtime / "standby.sock"
    command = [sys.executable, "-m", "holdfast_cli", "daemon", "--name", "standby", "--redis", run.store_url]
    options = ["--control", str(control), "--directory", str(tmp_path), "--metrics-port", "0"]
    options += ["--run-key-file", str(run_key(run.paths.directory, NAME))]
    standby = subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL)
    try:
        client = ControlClient(control, NAME)
        following = until(client, lambda status: len(status.ranks) == RANKS)
        assert not following.leader
        suspend_restart(run, "daemon")
        victim.kill("daemon")
        status = until(client, lambda status: status.leader and len(status.ranks) == RANKS)
        os.kill(status.ranks[2].pid, signal.SIGKILL)
        until(client, lambda status: status.restarts == victim.restarts + 1)
        assert list(client.incidents()[-1].verdict.culprits) == [2]
    finally:
        standby.terminate()
        standby.wait()
    resume_restart(run, "daemon")
    assert until(run, is_complete).restarts == victim.restarts + 1


@pytest.mark.gate
def test_training_continues_while_redis_is_dead_and_it_may_come_back_empty(victim: Victim) -> None:
    run = victim.run
    before = rank_pids(run.status())
    restart_redis(run)
    until_step(run, run.status().newest_step + 4)
    restart_redis(run, empty=True)
    reached = until(run, lambda status: status.leader and status.store_up).newest_step
    until_step(run, reached + 3)
    assert rank_pids(run.status()) == before
    victim.kill_rank(3)
    assert list(victim.recovered().verdict.culprits) == [3]


def test_a_new_agent_adopts_the_ranks_of_a_dead_one(victim: Victim) -> None:
    run = victim.run
    before, parent = rank_pids(run.status()), warm_parent_pid(run)
    old = victim.kill("agent")
    until(run, lambda _: run.stack.pids().get("agent") not in (None, old))
    until_all_attached(run)  # from then on it also hears from the warm parent how a rank ends
    until_step(run, run.status().newest_step + 4)
    assert rank_pids(run.status()) == before
    assert warm_parent_pid(run) == parent
    assert run.status().restarts == victim.restarts
    victim.kill_rank(1)
    incident = victim.recovered()
    assert list(incident.verdict.culprits) == [1]
    assert "SIGKILL" in incident.verdict.message


def test_a_rank_that_dies_while_no_agent_is_there_is_found(victim: Victim) -> None:
    suspend_restart(victim.run, "agent")
    pids = rank_pids(victim.run.status())
    victim.kill("agent")
    os.kill(pids[2], signal.SIGKILL)
    resume_restart(victim.run, "agent")
    assert victim.recovered().verdict.culprits[0] == 2


def test_the_uses_of_time_sum_to_the_wall_time_that_this_test_has_measured(began_unix_s: float, victim: Victim) -> None:
    status, age_s = status_and_age(victim.run, began_unix_s)
    expect_every_second_in(status.time_use_s, age_s)
    assert 0.0 < status.time_use_s["productive"] < age_s[0]


@pytest.mark.gate
@pytest.mark.safety
def test_after_all_that_its_weights_are_those_of_a_run_that_nothing_happened_to(runs: Runs, victim: Victim) -> None:
    step = victim.run.control.take_checkpoint()
    until(victim.run, lambda status: status.newest_checkpoint >= step)
    with runs.run("unharmed", hurry=True, steps=step + 1, checkpoint_every=0, flags=SCHEDULE) as unharmed:
        assert unharmed.wait(timeout_s=PATIENCE_S).phase == RUN_PHASE_FINISHED
    assert state_differences(runs.final_checkpoint(NAME, step), runs.final_checkpoint("unharmed", step)) == []
