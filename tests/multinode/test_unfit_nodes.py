"""A run with real agents leaves out a node that should not train, and checks one again after faults."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast_proto.v1.control_pb2 import NODE_ROLE_SPARE, NodeView
from holdfast_proto.v1.store_pb2 import RUN_PHASE_FINISHED, SOURCE_CHECKPOINT, Incident
from tests.multinode.cluster import PATIENCE_S, Cluster, cluster
from tests.support.local_runs import wait_for

pytestmark = pytest.mark.system

ENFORCED = ("--preflight", "--quarantine", "act")


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield the folder of node 2 in a file system that has no room."""
    folder = tmp_path / "disk-2"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m,mode=0700", "tmpfs", str(folder)], check=True, timeout=30)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=30)


def nodes(run: Cluster) -> dict[str, NodeView]:
    """Return the nodes of the run, by name."""
    return {view.node: view for view in run.control.nodes()}


def reason_of(run: Cluster, node: str) -> str:
    """Return why a node should not train; "" if it may, or is not known yet."""
    return nodes(run).get(node, NodeView()).history.quarantine


def crash_on(run: Cluster, node: str) -> tuple[Incident, str]:
    """Let a rank of a node crash; return the incident and its story once the run has recovered."""
    status = run.control.status()
    known = len(run.control.incidents())
    os.kill(next(rank.pid for rank in status.ranks if rank.node == node), signal.SIGSEGV)
    wait_for(lambda: len(run.control.incidents()) > known, "an incident")
    incident = run.until_recovered()
    run.until_step(status.newest_step + 5)
    return incident, "\n".join(action.what for action in incident.actions)


@pytest.mark.gate
@pytest.mark.usefixtures("full_disk")
def test_spares_take_the_places_of_a_node_without_room_and_of_one_that_fails_again_and_again(tmp_path: Path) -> None:
    with cluster(tmp_path, nodes=5, steps=600, flags=ENFORCED, uses_object_store=True, checkpoint_every=0) as run:
        wait_for(lambda: reason_of(run, "node-2"), "a quarantine")
        unfit = reason_of(run, "node-2")
        assert unfit.startswith("disk: ") and "free" in unfit
        run.start_agent(3)
        status = run.until(lambda now: now.newest_step > 5, "training")
        assert {rank.node for rank in status.ranks} == {"node-1", "node-3"}
        assert status.nodes_note == f"node node-2 should not train: {unfit}"
        run.start_agent(4)
        wait_for(lambda: nodes(run).get("node-4", NodeView()).role == NODE_ROLE_SPARE, "a spare")
        assert "checked" not in crash_on(run, "node-3")[1]
        second, story = crash_on(run, "node-3")
        assert "node node-3 is checked before its ranks start again" in story
        assert nodes(run)["node-3"].check.id == second.id and not reason_of(run, "node-3")
        third, story = crash_on(run, "node-3")
        assert "node node-4 takes the place of node-3, which should not train" in story, story
        assert third.source == SOURCE_CHECKPOINT and third.lost_steps <= 1, story  # what was in memory was written
        assert {rank.node for rank in run.control.status().ranks} == {"node-1", "node-4"}
        assert reason_of(run, "node-3").startswith("at fault 3 times: incidents ")
        run.control.release_node("node-2")
        run.until(lambda now: "node-2" not in now.nodes_note, "the release")
        run.hurry()
        run.until(lambda now: now.phase == RUN_PHASE_FINISHED, "the end")
        assert [run.processes[f"agent-{node}"].wait(PATIENCE_S) for node in (1, 4)] == [0, 0]
