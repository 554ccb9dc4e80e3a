"""A run with real agents leaves out a node that should not train, and checks one again after faults."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast_proto.v1.control_pb2 import NodeView
from holdfast_proto.v1.store_pb2 import RUN_PHASE_FINISHED
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


def kill_rank_of(run: Cluster, node: str) -> str:
    """Kill a rank of a node; return the story of the incident once the run has recovered."""
    status = run.control.status()
    known = len(run.control.incidents())
    os.kill(next(rank.pid for rank in status.ranks if rank.node == node), signal.SIGKILL)
    wait_for(lambda: len(run.control.incidents()) > known, "an incident")
    incident = run.until_recovered()
    run.until_step(status.newest_step + 5)
    return "\n".join(action.what for action in incident.actions)


@pytest.mark.gate
@pytest.mark.usefixtures("full_disk")
def test_a_spare_trains_in_the_place_of_a_node_without_room_and_is_checked_after_its_second_fault(
    tmp_path: Path,
) -> None:
    with cluster(tmp_path, nodes=4, steps=400, flags=ENFORCED, uses_object_store=True, replicate_every_s=0.5) as run:
        wait_for(lambda: reason_of(run, "node-2"), "a quarantine")
        unfit = reason_of(run, "node-2")
        assert unfit.startswith("disk: ") and "free" in unfit
        run.start_agent(3)
        status = run.until(lambda now: now.newest_step > 5, "training")
        assert {rank.node for rank in status.ranks} == {"node-1", "node-3"}
        assert status.nodes_note == f"node node-2 should not train: {unfit}"
        assert "checked" not in kill_rank_of(run, "node-3")
        assert "node node-3 is checked before its ranks start again" in kill_rank_of(run, "node-3")
        views = nodes(run)
        assert views["node-3"].check.id == views["node-3"].history.faults[-1].incident
        assert not views["node-3"].check.failures and not views["node-3"].history.quarantine
        run.control.release_node("node-2")
        assert run.until(lambda now: not now.nodes_note, "the release").newest_step > 5
        run.hurry()
        run.until(lambda now: now.phase == RUN_PHASE_FINISHED, "the end")
        assert [run.processes[f"agent-{node}"].wait(PATIENCE_S) for node in (1, 3)] == [0, 0]
