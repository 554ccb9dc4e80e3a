"""``holdfast observe`` on two to four nodes: each prints what happens on any of them, and nothing is touched."""

import json
import os
import signal
from pathlib import Path

import pytest

from holdfast_proto.exit_codes import ExitCode
from holdfast_proto.v1.store_pb2 import (
    INCIDENT_STATE_RESOLVED,
    VERDICT_KIND_DEAD_RANK,
    VERDICT_KIND_HUNG_COLLECTIVE,
    VERDICT_KIND_LOST_NODE,
)
from tests.multinode.cluster import is_alive
from tests.multinode.network import Link
from tests.multinode.observed_cluster import ObservedCluster, name_of, observed_cluster
from tests.support.foreign_checkpoints import TinyTraining, save_huggingface
from tests.support.local_runs import wait_for

pytestmark = pytest.mark.system


@pytest.mark.gate
def test_a_hung_rank_of_the_second_node_is_named_on_both_and_each_passes_its_launchers_code_on(tmp_path: Path) -> None:
    with observed_cluster(tmp_path) as run:
        run.observe_torchrun()
        pids = run.until_step(3)
        os.kill(pids[3], signal.SIGSTOP)
        incident = run.first_incident()
        assert (incident.verdict.kind, list(incident.verdict.culprits)) == (VERDICT_KIND_HUNG_COLLECTIVE, [3])
        for node in (1, 2):
            assert "rank 3 is stopped in" in run.until_line(node, f"incident {incident.id}")
        assert all(map(is_alive, pids.values()))  # the verdict has stopped nothing

        os.kill(pids[3], signal.SIGCONT)
        run.until_step(run.record().newest_step + 3)
        os.kill(pids[2], signal.SIGKILL)
        for node in (1, 2):
            run.until_line(node, "-dead-rank: rank 2")
        assert run.codes() == [1, 1]  # torchrun's
        assert not run.alive()


def test_one_node_of_two_judges_the_checkpoints_of_a_framework(tmp_path: Path) -> None:
    saved, training = tmp_path / "saved", TinyTraining()
    for step in (10, 20):
        save_huggingface(saved, step, training)
    for path in saved.rglob("*"):
        os.utime(path, (1e9, 1e9))  # quiet for long
    with observed_cluster(tmp_path) as run:
        for node in (2, 1):
            run.observe(node, *run.torchrun(node, steps=200), flags=("--guard", str(saved)))
        run.until_line(1, "guard: checkpoint-20: BAD: stale")
        assert "guard:" not in run.log(2)
        assert run.codes() == [0, 0]
        assert not run.alive()


def test_a_restart_by_torchrun_is_followed_and_a_finished_run_ends_with_the_launchers_codes(tmp_path: Path) -> None:
    with observed_cluster(tmp_path) as run:
        run.observe_torchrun("--max-restarts", "3", steps=60)
        pids = run.until_step(3)
        os.kill(pids[3], signal.SIGKILL)
        assert run.first_incident().verdict.kind == VERDICT_KIND_DEAD_RANK
        replaced = run.until_step(3, generation=2)
        assert sorted(replaced) == [0, 1, 2, 3]
        assert not set(replaced.values()) & set(pids.values())
        assert run.codes() == [0, 0]
        for node in (1, 2):
            assert len(run.incident_lines(node)) == 1
        assert not run.alive()


def test_four_nodes_lose_redis_and_one_observation_and_still_name_the_rank_that_hangs(
    tmp_path: Path,
) -> None:
    with observed_cluster(tmp_path, nodes=4, ranks_per_node=1) as run:
        run.observe_torchrun()
        pids = run.until_step(3)
        nodes = {state.ranks[0].rank: state.node for state in run.states()}
        assert sorted(nodes.values()) == ["node-1", "node-2", "node-3", "node-4"]
        by_node = {node: rank for rank, node in nodes.items()}

        # The daemon that leads gets evidence from any node. Node 4 has no daemon. A standby refuses in one line.
        far, leading = by_node["node-4"], wait_for(run.leading_node, "a leader")
        standby = run.ask(1 + leading % 3, "stacks")
        assert (standby.returncode, standby.stdout, standby.stderr.count("\n")) == (1, "", 1)
        assert "another daemon leads it" in standby.stderr
        stacks = run.ask(leading, "stacks", "--rank", str(far))
        assert (stacks.returncode, stacks.stderr) == (0, "")
        assert f"rank {far}, main thread" in stacks.stdout
        assert "main (observed_script.py:" in stacks.stdout
        profile = run.ask(leading, "profile", "--rank", str(far), "--steps", "2", "--json")
        assert (profile.returncode, profile.stderr) == (0, "")
        answer = json.loads(profile.stdout)
        assert (answer["rank"], answer["node"]) == (far, "node-4")
        assert [Path(path).stat().st_size > 0 for path in answer["files"]] == [True]

        run.lose_redis()
        for node in (1, 2, 3, 4):
            run.until_line(node, "is unreachable: the ranks of this node train on, and nothing is judged until it")
        steps = run.steps_done(by_node["node-1"])
        wait_for(lambda: run.steps_done(by_node["node-1"]) > steps + 20, "20 steps without Redis")
        run.start_redis()  # an empty one
        run.until_step(steps + 21)
        for node in (1, 2, 3, 4):
            run.until_line(node, "holdfast: Redis is reachable again")
        until_nobody_is_accused(run)
        hung = by_node["node-3"]
        stopped = f"-hung-collective: rank {hung} is stopped in"
        os.kill(pids[hung], signal.SIGSTOP)
        for node in (1, 2, 3, 4):
            run.until_line(node, stopped)
        os.kill(pids[hung], signal.SIGCONT)

        # The ranks of a node whose observation is killed train on, and nobody calls them dead or lost.
        run.processes[2].kill()
        wait_for(lambda: len(run.states()) == 3, "the end of the lease of node-2")
        steps = run.steps_done(by_node["node-1"])
        wait_for(lambda: run.steps_done(by_node["node-1"]) > steps + 20, "20 steps of all ranks")
        until_nobody_is_accused(run)
        before = {node: run.log(node).count(stopped) for node in (1, 3, 4)}
        os.kill(pids[hung], signal.SIGSTOP)
        wait_for(
            lambda: all(run.log(node).count(stopped) > count for node, count in before.items()), "the verdict on all"
        )
        until_nobody_is_accused(run)
        assert all(map(is_alive, pids.values()))


def until_nobody_is_accused(run: ObservedCluster) -> None:
    """Wait until no rank is called dead and no node lost, other than in reports that were taken back.

    On a busy machine, all ranks may seem to stand still while a node is missing. That is taken back once they train.
    """
    kinds = (VERDICT_KIND_DEAD_RANK, VERDICT_KIND_LOST_NODE)

    def is_free() -> bool:
        said = (incident for incident in run.incidents() if incident.verdict.kind in kinds)
        return all(incident.state == INCIDENT_STATE_RESOLVED for incident in said)

    wait_for(is_free, "the end of each report of a lost node")


def test_an_unusually_long_step_disturbs_nothing_and_a_slow_rank_is_named(tmp_path: Path) -> None:
    with observed_cluster(tmp_path) as run:
        run.observe_torchrun(steps=300)
        pids = run.until_step(20)
        long = tmp_path / "long-3"
        long.touch()
        wait_for(lambda: not long.exists(), "the end of the long step")
        run.until_step(run.record().newest_step + 10)
        # Such a step may be reported while it lasts. The report is withdrawn by itself.
        assert {incident.state for incident in run.incidents()} <= {INCIDENT_STATE_RESOLVED}
        (tmp_path / "slow-2").touch()
        for node in (1, 2):
            run.until_line(node, "-straggler: rank 2 is slow since step ")
        (tmp_path / "slow-2").unlink()
        assert {number: rank.pid for number, rank in run.ranks().items()} == pids
        assert run.codes() == [0, 0]
        assert run.record().restarts_total == 0


def test_a_lost_node_is_named_on_the_others_and_its_ranks_are_left_alone(tmp_path: Path) -> None:
    with observed_cluster(tmp_path) as run:
        run.observe_torchrun()
        pids = run.until_step(3)
        run.net.cut(2, Link.CONTROL, Link.DATA)  # the daemon that leads may be there: the other one takes over
        incident = run.first_incident()
        assert incident.verdict.kind == VERDICT_KIND_LOST_NODE
        assert (incident.verdict.node, list(incident.verdict.culprits)) == ("node-2", [2, 3])
        run.until_line(1, "node node-2 is lost, and with it ranks 2, 3")
        assert all(map(is_alive, pids.values()))


def test_when_the_node_of_the_leading_daemon_vanishes_another_leads_and_names_it(tmp_path: Path) -> None:
    with observed_cluster(tmp_path, nodes=3, ranks_per_node=1) as run:
        run.observe_torchrun()
        run.until_step(3)
        gone = wait_for(run.leading_node, "a leader")
        rank = {state.node: state.ranks[0].rank for state in run.states()}[name_of(gone)]
        others = {1, 2, 3} - {gone}
        run.lose(gone)
        incident = run.first_incident()
        assert run.leading_node() in others
        assert incident.verdict.kind == VERDICT_KIND_LOST_NODE
        assert (incident.verdict.node, list(incident.verdict.culprits)) == (name_of(gone), [rank])
        for node in others:
            run.until_line(node, f"node {name_of(gone)} is lost, and with it rank {rank}")
            assert run.processes[node].poll() is None


def test_with_on_hang_abort_a_hung_rank_is_ended_on_its_node_and_every_node_says_that_a_requeue_may_help(
    tmp_path: Path,
) -> None:
    with observed_cluster(tmp_path) as run:
        for node in (1, 2):
            flags = ("--on-hang", "abort", "--exit-code", "verdict")
            run.observe(node, *run.torchrun(node, "--max-restarts", "1"), flags=flags)
        run.until_step(3)
        # torchrun may count this restart on one node only. The command to end rank 3 must still reach its node.
        os.kill(run.pid_of(0), signal.SIGKILL)
        run.until_step(3, generation=2)
        (tmp_path / "hang-3").touch()
        assert run.codes() == [ExitCode.REQUEUE] * 2
        for node in (1, 2):
            run.until_line(node, f"exit code {ExitCode.REQUEUE:d} (a requeue may help), the launcher's is 1")
        hang = run.incidents()[-1]
        assert [(ended.rank, ended.node) for ended in hang.abort.ranks] == [(3, "node-2")]


def test_an_end_by_a_signal_to_one_node_is_no_incident(tmp_path: Path) -> None:
    with observed_cluster(tmp_path) as run:
        run.observe_torchrun()
        run.until_step(3)
        run.processes[2].send_signal(signal.SIGTERM)
        run.codes()
        assert [run.incident_lines(node) for node in (1, 2)] == [[], []]
        assert not run.alive()


@pytest.mark.parametrize("kind", ["mpirun", "srun"])
def test_each_rank_of_mpirun_and_srun_becomes_itself_and_is_watched(tmp_path: Path, kind: str) -> None:
    with observed_cluster(tmp_path) as run:
        for node in (1, 2):
            run.launch_observed(node, kind)
        pids = run.until_step(3)
        assert sorted(pids) == [0, 1, 2, 3]
        os.kill(pids[3], signal.SIGKILL)
        assert list(run.first_incident().verdict.culprits) == [3]
        for node in (1, 2):
            run.until_line(node, "-dead-rank: rank 3")
        # The launchers see their ranks' own ends, although `holdfast` has started these processes.
        assert run.codes() == [1, signal.SIGKILL]
        assert "codes [1, -9]" in run.log(2)
        wait_for(lambda: not run.alive(), "the end of the observations")
