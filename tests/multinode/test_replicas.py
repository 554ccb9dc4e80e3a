"""Replica snapshots between real nodes: a lost node costs a few steps, and no bit."""

import os
import signal
from pathlib import Path

import pytest

from holdfast_agent.snapshots.rank_slots import find_slots, read_header
from holdfast_core.checkpointing.restore_point import complete_replicas
from holdfast_proto.snapshot import SlotState
from holdfast_proto.v1.store_pb2 import (
    RUN_PHASE_FINISHED,
    SOURCE_CHECKPOINT,
    SOURCE_REPLICA,
    VERDICT_KIND_LOST_NODE,
)
from tests.multinode.cluster import (
    PATIENCE_S,
    RANKS_PER_NODE,
    TRAINER,
    Cluster,
    cluster,
    flip_bit,
    undisturbed_weights,
)
from tests.multinode.network import Link
from tests.multinode.observed_cluster import observed_cluster
from tests.support.local_runs import wait_for

pytestmark = pytest.mark.system

STEPS = 150
WORLD_SIZE = 2 * RANKS_PER_NODE


def memory_of(run: Cluster, node: int) -> Path:
    """Return the folder in memory of a node's agent."""
    return next(run.memory.glob(f"holdfast-*@node-{node}"))


def newest_snapshot(run: Cluster, node: int) -> int:
    """Return the newest step of which all ranks of a node have a complete snapshot in their slots."""
    steps: dict[int, int] = {}
    for slot in find_slots(memory_of(run, node)):
        header = read_header(slot.path)
        if header is not None and header.state is SlotState.COMPLETE:
            steps[slot.rank] = max(header.step, steps.get(slot.rank, -1))
    return min(steps.values(), default=-1)


def newest_step(run: Cluster) -> int:
    return max(finished.step for finished in run.journal())


@pytest.mark.gate
def test_a_spare_continues_from_the_partners_memory_to_the_same_bits(tmp_path: Path) -> None:
    expected = undisturbed_weights(tmp_path / "plain", STEPS)
    folder = tmp_path / "run"
    folder.mkdir()
    with cluster(folder, nodes=4, steps=STEPS, replicate_every_s=0.5, checkpoint_every=0) as run:
        step = run.until(lambda status: status.newest_replica > 10, "replica snapshots of all ranks").newest_replica
        run.start_agent(3)
        run.net.cut(2, Link.CONTROL, Link.DATA)
        incident = run.until_recovered()
        assert incident.verdict.kind == VERDICT_KIND_LOST_NODE
        assert "node node-3 takes the place of node-2" in [action.what for action in incident.actions]
        assert incident.source == SOURCE_REPLICA
        assert incident.resumed_step >= step
        assert min(line.step for line in run.journal() if line.generation == 2) == incident.resumed_step + 1
        run.hurry()
        run.until(lambda status: status.phase == RUN_PHASE_FINISHED, "the end")
        assert [run.processes[f"agent-{node}"].wait(PATIENCE_S) for node in (1, 3)] == [0, 0]
        assert (folder / "weights-0").read_bytes() == expected


def test_a_damaged_replica_snapshot_is_never_used(tmp_path: Path) -> None:
    expected = undisturbed_weights(tmp_path / "plain", STEPS)
    folder = tmp_path / "run"
    folder.mkdir()
    with cluster(folder, nodes=4, steps=STEPS, replicate_every_s=0.5, checkpoint_every=40) as run:
        run.until(lambda status: status.newest_replica > 41 and status.newest_checkpoint == 39, "both")
        run.start_agent(3)
        run.net.cut(2, Link.CONTROL, Link.DATA)
        for shard in memory_of(run, 1).glob("replicas/step-*/rank-00002.shard"):  # those that only node 1 still has
            flip_bit(shard)
        incident = run.until_recovered()
        assert (incident.source, incident.resumed_step) == (SOURCE_CHECKPOINT, 39)
        story = [action.what for action in incident.actions]
        assert any("rank 2" in line and "does not match its digest" in line for line in story), story
        run.hurry()
        run.until(lambda status: status.phase == RUN_PHASE_FINISHED, "the end")
        assert [run.processes[f"agent-{node}"].wait(PATIENCE_S) for node in (1, 3)] == [0, 0]
        assert (folder / "weights-0").read_bytes() == expected


def test_a_partner_that_does_not_answer_costs_training_nothing(tmp_path: Path) -> None:
    with cluster(tmp_path, nodes=3, steps=STEPS * 10, replicate_every_s=0.5, checkpoint_every=0) as run:
        run.until(lambda status: status.newest_replica > 0, "replica snapshots of all ranks")
        partner = run.processes["agent-2"].pid
        os.kill(partner, signal.SIGSTOP)
        stopped_at = newest_step(run)
        wait_for(lambda: newest_step(run) > stopped_at + 40, "steps next to a partner that does not answer")
        reached = newest_step(run)
        wait_for(lambda: newest_snapshot(run, 1) >= reached, "snapshots of these steps")  # no slot stays pinned
        os.kill(partner, signal.SIGCONT)
        status = run.until(lambda status: status.newest_replica > reached, "replica snapshots of later steps")
        assert (status.incidents, status.generation) == (0, 1)


def test_torchruns_spare_continues_from_the_partners_memory_to_the_same_bits(tmp_path: Path) -> None:
    expected = undisturbed_weights(tmp_path / "plain", STEPS)
    folder = tmp_path / "run"
    folder.mkdir()
    with observed_cluster(folder, nodes=3, ranks_per_node=RANKS_PER_NODE) as run:
        run.meet(TRAINER, str(STEPS), snapshot_every="1", checkpoint_every="0", replicate_every="0.5")

        def complete() -> list[tuple[int, int]]:
            return list(complete_replicas({node.node: node for node in run.states()}, WORLD_SIZE, copies=2))

        held = wait_for(complete, "replica snapshots of all ranks")
        lost = next(number for number in (1, 2, 3) if 2 in run.ranks_of(number))
        run.lose(lost)  # no connection tells the other ranks
        run.until_step(max(step for step, _ in held) + 1, generation=2)
        (folder / "hurry").touch()
        codes = {node: process.wait(PATIENCE_S) for node, process in run.processes.items() if node != lost}
        assert set(codes.values()) == {0}, run.log(1)
        story = [action.what for incident in run.incidents() for action in incident.actions]
        assert any(line.startswith("generation 2 starts from replica snapshots after step ") for line in story), story
        assert (folder / "weights-0").read_bytes() == expected
