"""Replica snapshots between real nodes: a lost node costs a few steps, and no bit."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast_core.checkpointing.restore_point import complete_replicas
from holdfast_proto.v1.store_pb2 import RUN_PHASE_FINISHED, SOURCE_REPLICA, VERDICT_KIND_LOST_NODE
from tests.multinode.cluster import PATIENCE_S, RANKS_PER_NODE, TRAINER, Cluster, cluster
from tests.multinode.network import Link
from tests.multinode.observed_cluster import observed_cluster
from tests.support.local_runs import wait_for

pytestmark = pytest.mark.system

STEPS = 150
WORLD_SIZE = 2 * RANKS_PER_NODE
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(WORLD_SIZE))


def undisturbed_weights(folder: Path) -> bytes:
    """Train under plain torchrun at full speed, and return the weights at the end."""
    folder.mkdir()
    (folder / "hurry").touch()
    command = [*TORCHRUN, "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", str(TRAINER), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, str(STEPS)], env=environment, check=True, capture_output=True, timeout=PATIENCE_S)
    return (folder / "weights-0").read_bytes()


def shard_of(run: Cluster, node: int, rank: int, step: int) -> Path:
    """Return the path of a replica snapshot in the memory of a node."""
    return next(run.memory.glob(f"holdfast-*@node-{node}/replicas/step-{step:08}/rank-{rank:05}.shard"))


@pytest.mark.gate
def test_a_spare_continues_from_the_partners_memory_to_the_same_bits(tmp_path: Path) -> None:
    expected = undisturbed_weights(tmp_path / "plain")
    folder = tmp_path / "run"
    folder.mkdir()
    with cluster(folder, nodes=4, steps=STEPS, replicate_every_s=0.5) as run:
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


def test_torchruns_spare_continues_from_the_partners_memory_to_the_same_bits(tmp_path: Path) -> None:
    expected = undisturbed_weights(tmp_path / "plain")
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
