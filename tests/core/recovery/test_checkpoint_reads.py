"""Checkpoints that cannot be read: a start is refused, and a run that has trained waits."""

import itertools

from holdfast_core.checkpointing import checkpoint_reads
from holdfast_core.checkpointing.restore_point import RestorePoint, choose
from holdfast_proto.v1 import store_pb2 as store
from tests.support.core_world import World

GONE = "the checkpoint of step 39 lacks step-00000039/rank-00000.shard"


def start_fails(world: World, reason: str = GONE) -> None:
    """Let no node find the files of the checkpoint that the newest generation starts from."""
    for node in world.node_states.values():
        node.failed_generation, node.failure, node.awaits_files = world.state.record.generation, reason, True
        node.stopped = True
        del node.ranks[:]


def failing(checkpoints: list[int]) -> World:
    """Return a world whose first start did not find its files."""
    world = World(checkpoints=checkpoints)
    world.obeys = False
    world.tick()
    start_fails(world)
    return world


def test_a_start_without_its_files_is_refused_and_nothing_else_is_tried() -> None:
    world = failing([19, 39])
    world.until("failed")
    assert world.state.record.refused
    assert GONE in world.state.record.outcome
    assert "--from-scratch" in world.state.record.outcome
    assert len(world.sent("start")) == 1
    assert not world.state.record.unreadable_checkpoints


def test_a_run_that_has_trained_waits_with_growing_pauses_and_counts_no_restart() -> None:
    world = World(checkpoints=[3])
    world.until("starting")
    world.train(6)
    world.obeys = False
    for node in world.node_states.values():
        for rank in node.ranks:
            del rank.snapshots[:]
    world.end(1, signal=9)
    world.until("stopping")
    for node in world.node_states.values():
        node.stopped = True
        for rank in node.ranks:
            del rank.snapshots[:]
    world.until("starting")
    assert world.sent("start")[-1].start.source == store.SOURCE_CHECKPOINT
    began, tries = [], 6
    for _ in range(tries):
        start_fails(world)
        world.until("stopping")
        world.until("starting", ticks=1000)
        began.append(world.now)
    pauses = [round(later - earlier) for earlier, later in itertools.pairwise(began)]
    assert pauses == sorted(pauses)
    assert pauses[0] >= 2
    assert pauses[-1] >= 2 ** (tries - 2)
    record = world.state.record
    assert (record.restarts_total, record.restarts_without_progress) == (1, 0)
    [waiting] = [one for one in world.incidents if one.verdict.kind == store.VERDICT_KIND_CHECKPOINT_FAILED]
    assert waiting.verdict.message.startswith("the run waits, because its checkpoint of step 3 cannot be read")
    assert GONE in waiting.verdict.message

    world.obeys = True
    for node in world.node_states.values():
        node.awaits_files, node.failed_generation = False, 0
    world.tick(seconds=checkpoint_reads.LONGEST_PAUSE_S)
    world.tick(seconds=3.0)
    world.train(1)
    assert (world.phase, world.state.record.failed_reads) == ("running", 0)
    assert "the run trains" in world.state.incidents[waiting.id].actions[-1].what


def test_checkpoints_that_are_all_damaged_are_never_answered_with_the_seed() -> None:
    world = World(checkpoints=[19])
    world.node_states["node0"].damaged_checkpoints.append(39)
    del world.node_states["node0"].checkpoints[:]
    world.tick()
    assert world.phase == "failed"
    assert world.state.record.refused
    assert "all are damaged: `holdfast checkpoint verify --all`" in world.state.record.outcome
    assert world.sent("start") == []


def test_the_incident_of_a_damaged_checkpoint_says_what_was_used_instead() -> None:
    world = World(checkpoints=[19])
    world.node_states["node0"].damaged_checkpoints.append(39)
    world.tick()
    assert world.sent("start")[-1].start.step == 19
    [damaged] = world.incidents
    assert (damaged.verdict.kind, damaged.verdict.step) == (store.VERDICT_KIND_CHECKPOINT_FAILED, 39)
    assert damaged.verdict.message.startswith("the checkpoint of step 39 is damaged")
    assert damaged.actions[-1].what == "generation 1 starts from a checkpoint after step 19 instead"


def test_a_reported_shard_has_one_incident_that_names_the_checkpoint_used_instead() -> None:
    world = World(checkpoints=[19, 39])
    unreadable = store.CheckpointUnreadable(step=39, reason="digest differs")
    world.events.append(store.Event(node="node0", checkpoint_unreadable=unreadable))
    world.until("starting")
    [damaged] = world.incidents
    assert damaged.verdict.message == "digest differs"
    assert damaged.actions[-1].what == "generation 1 starts from a checkpoint after step 19 instead"


def test_history_comes_before_step() -> None:
    old = store.NodeState(history=1, checkpoints=[10, 20, 90])
    new = store.NodeState(history=2, checkpoints=[10, 20, 30])
    assert choose({"a": old, "b": new}, 1, []) == RestorePoint(store.SOURCE_CHECKPOINT, 30)


def test_a_fallback_begins_a_history_that_names_its_parent_and_step() -> None:
    point = choose({"a": store.NodeState(history=2, checkpoints=[10, 20, 30])}, 1, [30], 5.0)
    begun = store.History(number=3, parent=2, parent_step=20, since_unix_s=5.0)
    assert point == RestorePoint(store.SOURCE_CHECKPOINT, 20, begun, frozenset({30}))
