"""A run trains on with fewer nodes after a loss, and then with all of them again, along the undisturbed curve."""

from collections import Counter
from pathlib import Path

import pytest

from holdfast_proto.v1.store_pb2 import RUN_PHASE_FINISHED, SOURCE_CHECKPOINT, VERDICT_KIND_LOST_NODE
from tests.multinode.cluster import PATIENCE_S, RANKS_PER_NODE, cluster, train_undisturbed
from tests.multinode.network import Link
from tests.multinode.observed_cluster import observed_cluster
from tests.support.local_runs import wait_for

pytestmark = pytest.mark.system

STEPS = 240
SCRIPT = Path(__file__).with_name("resized_trainer.py")


def undisturbed_losses(folder: Path) -> list[float]:
    """Train with all ranks under plain torchrun at full speed, and return the loss of each step."""
    train_undisturbed(folder, STEPS, script=SCRIPT)
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
    assert [loss for _, loss in sorted(losses(folder).items())] == pytest.approx(expected, rel=1e-3)


def test_under_torchrun_the_curve_is_the_same_and_a_node_that_joins_again_costs_no_more_than_a_step(
    tmp_path: Path,
) -> None:
    expected = undisturbed_losses(tmp_path / "plain")
    folder = tmp_path / "run"
    folder.mkdir()
    settings = {"snapshot_every": "1", "checkpoint_every": "0", "replicate_every": "0.5"}
    with observed_cluster(folder, nodes=2, ranks_per_node=RANKS_PER_NODE) as run:
        run.meet(SCRIPT, str(STEPS), spares=0, shrink_to="1", resize_after="1", **settings)
        wait_for(lambda: any(state.replicas.HasField("replicated_step") for state in run.states()), "replica snapshots")
        run.until_step(20)
        lost = next(node for node in (1, 2) if 2 in run.ranks_of(node))
        run.lose(lost)
        run.until_step(40, generation=2)
        assert "continues with 1 of 2 nodes: none came within 1 s" in run.log(3 - lost)
        run.net.repair(lost, Link.CONTROL, Link.DATA)
        run.join(lost, SCRIPT, str(STEPS), spares=0, shrink_to="1", resize_after="1", **settings)
        run.until_step(60, generation=3)
        (folder / "hurry").touch()
        assert {process.wait(PATIENCE_S) for process in run.processes.values()} == {0}, run.log(3 - lost)
    assert [loss for _, loss in sorted(losses(folder).items())] == pytest.approx(expected, rel=1e-3)
    assert sum(steps_done(folder)[step] - 1 for step in range(40, STEPS)) <= 3  # it has continued from memory


def steps_done(folder: Path) -> Counter[int]:
    """Return how often each step was trained."""
    return Counter(int(line.split()[1]) for line in (folder / "losses").read_text().splitlines())
