"""A run trains on with fewer nodes after a loss, and then with all of them again, along the undisturbed curve."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast_proto.v1.store_pb2 import RUN_PHASE_FINISHED, SOURCE_CHECKPOINT, VERDICT_KIND_LOST_NODE
from tests.multinode.cluster import PATIENCE_S, RANKS_PER_NODE, cluster
from tests.multinode.network import Link

pytestmark = pytest.mark.system

STEPS = 240
SCRIPT = Path(__file__).with_name("resized_trainer.py")


def undisturbed_losses(folder: Path) -> list[float]:
    """Train with all ranks under plain torchrun at full speed, and return the loss of each step."""
    folder.mkdir()
    (folder / "hurry").touch()
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(2 * RANKS_PER_NODE)]
    command = [*launcher, "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", str(SCRIPT), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, str(STEPS)], env=environment, check=True, capture_output=True, timeout=PATIENCE_S)
    return [loss for _, loss in sorted(losses(folder).items())]


def losses(folder: Path) -> dict[int, float]:
    """Return the loss of each step, as it was trained last."""
    lines = (line.split() for line in (folder / "losses").read_text().splitlines())
    return {int(step): float(loss) for _, step, loss in lines}


@pytest.mark.gate
def test_the_curve_with_fewer_nodes_for_a_while_is_that_of_the_undisturbed_run(tmp_path: Path) -> None:
    expected = undisturbed_losses(tmp_path / "plain")
    folder = tmp_path / "run"
    folder.mkdir()
    may_shrink = ("--min-replicas", "2", "--resize-after-s", "1")
    with cluster(
        folder, nodes=3, steps=STEPS, script=SCRIPT, replicate_every_s=0.5, checkpoint_every=0, flags=may_shrink
    ) as run:
        step = run.until(lambda status: status.newest_replica > 10, "replica snapshots of all ranks").newest_replica
        run.net.cut(2, Link.CONTROL, Link.DATA)
        incident = run.until_recovered()
        assert incident.verdict.kind == VERDICT_KIND_LOST_NODE
        assert incident.source == SOURCE_CHECKPOINT
        assert incident.resumed_step >= step
        status = run.until_step(incident.resumed_step + 10)
        assert len(status.ranks) == RANKS_PER_NODE
        run.net.repair(2, Link.CONTROL, Link.DATA)
        status = run.until(lambda status: status.generation == 3 and len(status.ranks) == 4, "all ranks again")
        run.until(lambda now: now.newest_step > status.newest_step + 10, "further steps")
        story = [action.what for action in run.control.incidents()[0].actions]
        assert "no node has come: the run trains on with 1 of 2 nodes, 2 of 4 ranks" in story, story
        assert "node node-2 is taken in: the run trains on with 2 of 2 nodes, 4 of 4 ranks" in story, story
        run.hurry()
        run.until(lambda status: status.phase == RUN_PHASE_FINISHED, "the end")
        assert [run.processes[f"agent-{node}"].wait(PATIENCE_S) for node in (1, 2)] == [0, 0]
    found = [loss for _, loss in sorted(losses(folder).items())]
    assert len(found) == STEPS
    assert max(abs(ours - theirs) / theirs for ours, theirs in zip(found, expected, strict=True)) < 1e-3
    assert math.isclose(found[-1], expected[-1], rel_tol=1e-3)
