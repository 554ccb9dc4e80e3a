"""Nodes that share nothing but an object store."""

from pathlib import Path

import pytest

from holdfast_checkpoint.store.directory import CheckpointDirectory
from holdfast_proto.v1.store_pb2 import RUN_PHASE_FINISHED, SOURCE_CHECKPOINT, VERDICT_KIND_LOST_NODE
from tests.multinode.cluster import CHECKPOINT_EVERY, PATIENCE_S, cluster
from tests.multinode.network import Link

pytestmark = pytest.mark.system


def test_a_spare_with_an_empty_disk_continues_from_the_object_store(tmp_path: Path) -> None:
    with cluster(tmp_path, nodes=4, steps=200, uses_object_store=True) as run:
        run.until(lambda status: status.newest_checkpoint >= 2 * CHECKPOINT_EVERY, "two checkpoints in the store")
        run.start_agent(3)
        run.net.cut(2, Link.CONTROL, Link.DATA)
        incident = run.until_recovered()
        assert incident.verdict.kind == VERDICT_KIND_LOST_NODE
        assert "node node-3 takes the place of node-2" in [action.what for action in incident.actions]
        assert incident.source == SOURCE_CHECKPOINT
        assert incident.resumed_step >= 2 * CHECKPOINT_EVERY
        begun = min(line.step for line in run.journal() if line.generation == 2)
        assert begun == incident.resumed_step + 1
        fetched = run.disk(3) / "node-node-3" / "checkpoints" / f"step-{incident.resumed_step:08}"
        assert (fetched / "rank-00002.shard").exists()
        assert not (fetched / "rank-00000.shard").exists()  # the shards of the node that has stayed

        run.hurry()
        run.until(lambda status: status.phase == RUN_PHASE_FINISHED, "the end")
        assert [run.processes[f"agent-{node}"].wait(PATIENCE_S) for node in (1, 3)] == [0, 0]
        copies = CheckpointDirectory(run.second_place, kept=1)
        newest = copies.verify(copies.committed()[-1])
        assert newest.step == 199
        # No loss follows the last step. So the newest copy that one has followed stays, too.
        proven = sorted(copies.proven(copies.committed()))[-1:]
        bases = {base for step in proven for base in copies.load_manifest(step).bases}
        assert copies.committed() == sorted({199, *newest.bases, *proven, *bases})
