"""A run on two nodes, with faults of one node and of the networks between both."""

import os
import signal
from pathlib import Path

import pytest

from holdfast_proto.v1.store_pb2 import (
    RUN_PHASE_FINISHED,
    RUN_PHASE_RUNNING,
    RUN_PHASE_STOPPING,
    SOURCE_CHECKPOINT,
    SOURCE_MEMORY,
    VERDICT_KIND_DEAD_RANK,
    VERDICT_KIND_LOST_NODE,
    VERDICT_KIND_TRANSPORT,
)
from tests.multinode.cluster import PATIENCE_S, Cluster, cluster, is_alive
from tests.multinode.network import Link
from tests.support.local_runs import wait_for

pytestmark = pytest.mark.system

ENDLESS = 1_000_000
"""Steps of a run that no test waits to end: on a slow machine it must not end while the test looks elsewhere."""


def test_a_killed_rank_is_named_and_a_cut_control_link_stops_nothing(tmp_path: Path) -> None:
    with cluster(tmp_path, nodes=3, steps=200) as run:
        pids = {rank.rank: rank.pid for rank in run.until_step(5).ranks}
        assert {rank.rank: rank.node for rank in run.control.status().ranks} == {
            0: "node-1",
            1: "node-1",
            2: "node-2",
            3: "node-2",
        }
        os.kill(pids[2], signal.SIGKILL)
        incident = run.until_recovered()
        assert incident.verdict.kind == VERDICT_KIND_DEAD_RANK
        assert list(incident.verdict.culprits) == [2]

        run.net.cut(2, Link.CONTROL)
        run.until(lambda status: {rank.node for rank in status.ranks} == {"node-1"}, "the lease to run out")
        reached = run.journal()[-1].step
        run.until(lambda _: run.journal()[-1].step > reached + 10, "steps of which one half is reported")
        run.net.repair(2, Link.CONTROL)
        run.until(lambda status: len(status.ranks) == 4 and status.newest_step > reached + 10, "the reports of all")
        run.hurry()
        status = run.until(lambda status: status.phase == RUN_PHASE_FINISHED, "the end")
        assert [run.processes[f"agent-{node}"].wait(PATIENCE_S) for node in (1, 2)] == [0, 0]
        assert status.incidents == 1
        assert status.generation == 2


@pytest.mark.gate
def test_a_spare_takes_the_place_of_a_node_that_is_cut_off_and_comes_back(tmp_path: Path) -> None:
    with cluster(tmp_path, nodes=4, steps=ENDLESS) as run:
        old_pids = [rank.pid for rank in run.until_step(12).ranks if rank.node == "node-1"]
        run.start_agent(3)
        run.net.cut(1, Link.CONTROL, Link.DATA)  # rank 0 is there, with the store at which all ranks have met
        incident = run.until_recovered()
        assert incident.verdict.kind == VERDICT_KIND_LOST_NODE
        assert incident.verdict.node == "node-1"
        assert list(incident.verdict.culprits) == [0, 1]
        assert incident.source == SOURCE_CHECKPOINT
        assert "node node-3 takes the place of node-1" in [action.what for action in incident.actions]
        assert all(is_alive(pid) for pid in old_pids)  # no command can reach them yet

        run.net.repair(1, Link.CONTROL, Link.DATA)
        wait_for(lambda: not any(map(is_alive, old_pids)), "the end of the replaced ranks")
        status = run.until_step(run.control.status().newest_step + 5)
        assert {rank.rank: rank.node for rank in status.ranks} == {0: "node-3", 1: "node-3", 2: "node-2", 3: "node-2"}
        assert status.generation == 2
        assert_generations_do_not_overlap(run)


def test_without_a_spare_the_run_waits_for_a_node_and_continues_with_it(tmp_path: Path) -> None:
    with cluster(tmp_path, nodes=3, steps=ENDLESS) as run:
        run.until_step(12)
        run.net.cut(2, Link.CONTROL, Link.DATA)
        run.until(lambda status: status.phase == RUN_PHASE_STOPPING, "all other ranks to be stopped")
        assert run.incident().verdict.node == "node-2"
        run.net.repair(2, Link.CONTROL, Link.DATA)
        incident = run.until_recovered()
        assert incident.source == SOURCE_MEMORY  # the node still has its snapshots
        assert_generations_do_not_overlap(run)


def test_a_cut_data_link_is_no_ranks_fault_and_names_the_nodes(tmp_path: Path) -> None:
    with cluster(tmp_path, nodes=3, steps=ENDLESS) as run:
        run.until_step(12)
        run.net.cut(2, Link.DATA)
        verdict = run.incident().verdict
        # If the link were repaired before the restart, the run would continue without one.
        run.until(lambda status: status.phase != RUN_PHASE_RUNNING, "the restart")
        run.net.repair(2, Link.DATA)
        incident = run.until_recovered()
        assert verdict.kind == VERDICT_KIND_TRANSPORT
        assert list(verdict.culprits) == []
        assert "between nodes node-1, node-2" in verdict.message
        assert incident.id.startswith("0001")
        assert_generations_do_not_overlap(run)


def test_a_data_link_that_stays_down_is_reported_again_by_the_ranks_that_cannot_meet(tmp_path: Path) -> None:
    with cluster(tmp_path, nodes=3, steps=ENDLESS) as run:
        run.until_step(12)
        run.net.cut(2, Link.DATA)
        second = wait_for(lambda: next(iter(run.control.incidents()[1:]), None), "the next verdict")
        run.net.repair(2, Link.DATA)
        run.until_step(run.control.status().newest_step + 5)
        assert second.verdict.kind == VERDICT_KIND_TRANSPORT
        assert list(second.verdict.culprits) == []
        assert second.verdict.message.startswith("nodes node-1, node-2 do not reach each other: ")
        assert_generations_do_not_overlap(run)


def assert_generations_do_not_overlap(run: Cluster) -> None:
    generations = [finished.generation for finished in run.journal()]
    assert generations == sorted(generations)
    assert len(set(generations)) > 1
