"""Every part is killed in turn while a run trains; the result must be that of an undisturbed run."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from holdfast_cli.control import ControlClient
from holdfast_cli.local_run import LocalRun
from holdfast_proto.v1.store_pb2 import (
    INCIDENT_STATE_RECOVERED,
    RUN_PHASE_RUNNING,
    VERDICT_KIND_DEAD_RANK,
    VERDICT_KIND_HUNG_COLLECTIVE,
)
from tests.chaos.conftest import Runs, finish, until, until_step


def kill_rank(local: LocalRun, rank: int, number: int = signal.SIGKILL) -> None:
    os.kill(local.rank_pids()[rank], number)


def test_a_killed_rank_is_named_and_the_run_recovers(runs: Runs, undisturbed: Path) -> None:
    with runs.run("killed-rank") as local:
        until_step(local, 12)
        kill_rank(local, 3)
        status = finish(local, undisturbed, runs, "killed-rank")
        incident = local.incidents()[0]
    assert status.restarts == 1
    assert incident.verdict.kind == VERDICT_KIND_DEAD_RANK
    assert list(incident.verdict.culprits) == [3]
    assert incident.state == INCIDENT_STATE_RECOVERED
    assert incident.lost_steps <= 1
    assert 0 < incident.detected_unix_s < incident.recovered_unix_s
    assert "rank-00003.black_box.json" in incident.evidence


def test_a_stopped_rank_is_named_and_the_run_recovers(runs: Runs, undisturbed: Path) -> None:
    with runs.run("stopped-rank") as local:
        until_step(local, 12)
        kill_rank(local, 2, signal.SIGSTOP)
        status = finish(local, undisturbed, runs, "stopped-rank")
        incident = local.incidents()[0]
    assert status.restarts == 1
    assert incident.verdict.kind == VERDICT_KIND_HUNG_COLLECTIVE
    assert list(incident.verdict.culprits) == [2]
    assert "rank 2 is stopped" in incident.verdict.message
    assert incident.verdict.waits
    assert incident.state == INCIDENT_STATE_RECOVERED
    dumps = [name for name in incident.evidence if name.endswith(".flight_recorder.json")]
    assert "rank-00000.flight_recorder.json" in dumps
    assert "rank-00002.flight_recorder.json" not in dumps
    assert "rank-00002.stack.txt" in incident.evidence


def test_training_goes_on_without_its_warm_parent_and_can_still_recover(runs: Runs, undisturbed: Path) -> None:
    with runs.run("warm-parent") as local:
        until_step(local, 8)
        old = local.warm_parent_pid()
        assert old is not None
        before = local.rank_pids()
        os.kill(old, signal.SIGKILL)
        until_step(local, 12)
        assert local.rank_pids() == before
        kill_rank(local, 1)
        until(local, lambda status: status.restarts == 1 and status.phase == RUN_PHASE_RUNNING)
        assert local.warm_parent_pid() not in (None, old)
        finish(local, undisturbed, runs, "warm-parent")
        incident = local.incidents()[0]
    assert list(incident.verdict.culprits) == [1]
    assert "SIGKILL" in incident.verdict.message  # reaped by the agent, whose child the orphan had become


def test_training_goes_on_while_the_daemon_is_dead(runs: Runs, undisturbed: Path) -> None:
    with runs.run("daemon") as local:
        until_step(local, 8)
        before = local.rank_pids()
        pid = local.pid_of("daemon")
        assert pid is not None
        local.suspend_restart("daemon")
        os.kill(pid, signal.SIGKILL)
        os.kill(before[0], signal.SIGKILL)  # while nobody is there to see it
        local.resume_restart("daemon")
        until(local, lambda status: status.restarts == 1 and status.phase == RUN_PHASE_RUNNING)
        finish(local, undisturbed, runs, "daemon")
        incidents = local.incidents()
    assert [list(incident.verdict.culprits) for incident in incidents] == [[0]]


def test_a_standby_takes_over(runs: Runs, undisturbed: Path, tmp_path: Path) -> None:
    with runs.run("standby") as local:
        until_step(local, 4)
        control = local.paths.runtime / "standby.sock"
        command = [sys.executable, "-m", "holdfast_cli", "daemon", "--name", "standby", "--redis", local.store_url]
        options = ["--control", str(control), "--directory", str(tmp_path), "--metrics-port", "0"]
        standby = subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL)
        try:
            client = ControlClient(control, "standby", timeout_s=2.0)
            following = until(client, lambda status: len(status.ranks) == 4)
            assert not following.leader
            local.suspend_restart("daemon")
            pid = local.pid_of("daemon")
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            status = until(client, lambda status: status.leader and len(status.ranks) == 4)
            os.kill(status.ranks[2].pid, signal.SIGKILL)
            until(client, lambda status: status.restarts == 1)
            assert list(client.incidents()[0].verdict.culprits) == [2]
        finally:
            standby.terminate()
            standby.wait()
        local.resume_restart("daemon")
        status = finish(local, undisturbed, runs, "standby")
    assert status.restarts == 1


def test_training_goes_on_while_redis_is_dead_and_it_may_come_back_empty(runs: Runs, undisturbed: Path) -> None:
    with runs.run("redis") as local:
        until_step(local, 6)
        before = local.rank_pids()
        local.restart_redis()
        until_step(local, 12)
        local.restart_redis(empty=True)
        reached = until(local, lambda status: status.leader and status.store_up).newest_step
        until_step(local, reached + 3)
        assert local.rank_pids() == before
        kill_rank(local, 3)
        status = finish(local, undisturbed, runs, "redis")
        incidents = local.incidents()
    assert status.restarts == 1
    assert [list(incident.verdict.culprits) for incident in incidents] == [[3]]


def test_a_new_agent_adopts_the_ranks_of_a_dead_one(runs: Runs, undisturbed: Path) -> None:
    with runs.run("agent") as local:
        until_step(local, 8)
        before, parent = local.rank_pids(), local.warm_parent_pid()
        old = local.pid_of("agent")
        assert old is not None
        os.kill(old, signal.SIGKILL)
        until(local, lambda _: local.pid_of("agent") not in (None, old))
        until_step(local, 16)
        assert local.rank_pids() == before
        assert local.warm_parent_pid() == parent
        assert local.status().restarts == 0
        kill_rank(local, 1)
        status = finish(local, undisturbed, runs, "agent")
        incidents = local.incidents()
    assert status.restarts == 1
    assert [list(incident.verdict.culprits) for incident in incidents] == [[1]]
    assert "SIGKILL" in incidents[0].verdict.message


def test_a_rank_that_dies_while_no_agent_is_there_is_found(runs: Runs, undisturbed: Path) -> None:
    with runs.run("agent-and-rank") as local:
        until_step(local, 8)
        old = local.pid_of("agent")
        assert old is not None
        local.suspend_restart("agent")
        pids = local.rank_pids()
        os.kill(old, signal.SIGKILL)
        os.kill(pids[2], signal.SIGKILL)
        local.resume_restart("agent")
        status = finish(local, undisturbed, runs, "agent-and-rank")
        incident = local.incidents()[0]
    assert status.restarts == 1
    assert incident.verdict.culprits[0] == 2
