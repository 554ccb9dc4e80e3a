"""Starts from replica snapshots: when they are the newest state, who has them, and what follows if they are damaged."""

import pytest

from holdfast_core.checkpointing.replicas import STARTS_KEPT, is_in_line, note_start
from holdfast_core.checkpointing.restore_point import RestorePoint, choose, complete_replicas
from holdfast_core.texts.refusals import unused
from holdfast_proto.v1 import store_pb2 as store
from tests.core.checkpointing.replicating import held, look, pass_time, replicating
from tests.core.recovery.test_launched_restore import Restored
from tests.core.runs import restart
from tests.support.core_world import World
from tests.support.replica_nodes import offer, replicate


def node(
    *replicas: store.HeldReplicas, memory: dict[int, list[int]] | None = None, **fields: object
) -> store.NodeState:
    """Return a node that holds replica snapshots, and snapshots in memory by rank."""
    made = store.NodeState(replicas=store.NodeReplicas(held=replicas), **fields)  # type: ignore[arg-type]
    for rank, steps in (memory or {}).items():
        made.ranks.add(rank=rank, snapshots=steps)
    return made


def test_a_set_is_complete_when_every_rank_of_one_generation_is_held() -> None:
    def of_three(step: int, *ranks: int, generation: int = 1) -> store.HeldReplicas:
        return held(step, *ranks, generation=generation, world_size=3)

    nodes = {
        "a": node(of_three(9, 0, 1), of_three(19, 0, 1), of_three(29, 0, 1, generation=2)),
        "b": node(of_three(9, 0, 1), of_three(19, 1, 2), of_three(29, 2)),
        "c": node(of_three(9, 2)),
    }
    assert complete_replicas(nodes, 3) == {(9, 1), (19, 1)}
    assert complete_replicas(nodes, 2) == set()
    assert complete_replicas(nodes, 3, copies=2) == set()
    nodes["d"] = node(of_three(9, 2))
    assert complete_replicas(nodes, 3, copies=2) == {(9, 1)}


@pytest.mark.parametrize(
    ("memory", "checkpoints", "source", "step"),
    [
        ([20], [20], store.SOURCE_MEMORY, 20),
        ([10], [20], store.SOURCE_REPLICA, 20),
        ([10], [10], store.SOURCE_REPLICA, 20),
        ([30], [10], store.SOURCE_MEMORY, 30),
        ([10], [30], store.SOURCE_CHECKPOINT, 30),
    ],
)
def test_the_newest_state_is_taken_and_of_one_step_the_one_that_is_loaded_fastest(
    memory: list[int], checkpoints: list[int], source: int, step: int
) -> None:
    nodes = {"a": node(memory={0: memory, 1: memory}, checkpoints=checkpoints)}
    point = choose(nodes, 2, [], replicas=[(20, 3)])
    assert point is not None
    assert (point.source, point.step) == (source, step)
    assert point.replica_generation == (3 if source == store.SOURCE_REPLICA else 0)
    assert point.history is None


def test_the_replica_snapshots_of_the_newest_generation_are_taken() -> None:
    point = choose({}, 2, [], replicas=[(20, 2), (20, 3)])
    assert point is not None
    assert point.replica_generation == 3


def test_states_that_may_be_bad_are_left_unused_if_there_is_an_earlier_one() -> None:
    nodes = {"a": node(memory={0: [25], 1: [25]}, checkpoints=[5])}
    point = choose(nodes, 2, [], bad_from=15, replicas=[(10, 2), (20, 3)])
    assert point == RestorePoint(store.SOURCE_REPLICA, 10, replica_generation=2)
    point = choose({}, 2, [], bad_from=15, replicas=[(20, 3)])
    assert point == RestorePoint(store.SOURCE_REPLICA, 20, replica_generation=3)


def with_starts(*starts: tuple[int, int], record: store.CoordinatorState | None = None) -> store.CoordinatorState:
    """Return the record of a run whose generations have begun after these steps."""
    made = record or store.CoordinatorState()
    for generation, step in starts:
        made.generation, made.resumed_step = generation, step
        note_start(made)
    return made


def test_a_state_that_was_undone_is_not_used_even_if_a_lost_node_brings_it_back() -> None:
    record = with_starts((1, -1), (2, 59), (3, 16), (4, 40))  # the third has gone back
    in_line = [(16, 1), (10, 2), (16, 2), (40, 3), (99, 4)]
    undone = [(59, 1), (17, 2), (41, 3)]
    assert [one for one in in_line + undone if is_in_line(record, *one)] == in_line


def test_nothing_from_before_a_lost_record_and_nothing_very_old_is_used() -> None:
    record = store.CoordinatorState(generation=5)  # a leader that has found the store emptied
    assert is_in_line(record, 50, 5) and not is_in_line(record, 50, 4)
    with_starts((6, 50), record=record)
    assert is_in_line(record, 50, 5) and not is_in_line(record, 51, 5) and not is_in_line(record, 50, 4)
    with_starts(*((generation, 10 * generation) for generation in range(7, 8 + STARTS_KEPT)), record=record)
    assert len(record.line.starts) == STARTS_KEPT
    assert not is_in_line(record, 50, 5)
    assert is_in_line(record, 80, record.line.since_generation)


def test_a_start_from_before_a_damaged_checkpoint_begins_a_history() -> None:
    point = choose({"a": node(checkpoints=[10, 30], history=1)}, 2, [30], 5.0, replicas=[(20, 3)])
    assert point is not None
    assert (point.source, point.step, point.passed_over) == (store.SOURCE_REPLICA, 20, frozenset({30}))
    assert point.history == store.History(number=2, parent=1, parent_step=20, since_unix_s=5.0)


def test_an_unused_state_is_a_snapshot_whatever_node_had_it() -> None:
    assert unused(store.SOURCE_REPLICA, 20, any_attached=False).startswith("no rank attached: the snapshot of step 20")


def with_a_lost_node() -> World:
    """Return a run with a checkpoint and two sets of replica snapshots, on a spare in place of a lost node."""
    world = replicating(checkpoints=[0])
    world.tick()
    replicate(world)
    look(world)
    pass_time(world, 15.0)
    replicate(world)
    world.train(30)
    del world.node_states["node2"]
    world.node_states["node3"] = store.NodeState(
        run="r", node="node3", ready=True, stopped=True, instance="i", checkpoints=[0]
    )
    offer(world.node_states["node3"])
    restart(world)
    return world


def starts(world: World) -> dict[str, store.StartGeneration]:
    """Return the newest commands to start."""
    return {name: one.start for name, one in world.commands if one.generation == world.state.record.generation}


def test_after_the_loss_of_a_node_the_run_continues_from_replica_snapshots_and_the_spare_learns_who_has_them() -> None:
    world = with_a_lost_node()
    sent, record = starts(world), world.state.record
    newest = max(one.step for one in world.node_states["node0"].replicas.held)
    assert {(one.source, one.step, one.replica_generation) for one in sent.values()} == {
        (store.SOURCE_REPLICA, newest, 1)
    }
    assert {name: list(one.replica_holders) for name, one in sent.items()} == {
        "node0": [],
        "node1": [],
        "node3": [store.ReplicaHolder(rank=rank, address="node0:7000") for rank in (4, 5)],
    }
    assert record.replica_generation == 1
    lines = [line.what for line in world.incidents[-1].actions]
    assert f"generation 2 starts from replica snapshots after step {newest}" in lines


def test_replica_snapshots_that_cannot_be_loaded_never_end_the_run_but_lead_to_older_states() -> None:
    world = with_a_lost_node()
    world.spec.restarts_without_progress = 0
    tried = []
    while (source := world.state.record.source) == store.SOURCE_REPLICA:
        tried.append(world.state.record.resumed_step)
        spare = world.node_states["node3"]
        del spare.ranks[:]
        spare.stopped = True
        spare.failed_generation, spare.failure = world.state.record.generation, "rank 4: damaged on node0"
        spare.replicas.unusable_generation = spare.failed_generation
        restart(world)
    assert tried == sorted({one.step for one in world.node_states["node0"].replicas.held}, reverse=True)
    assert (source, world.state.record.resumed_step) == (store.SOURCE_CHECKPOINT, 0)
    assert world.state.record.restarts_without_progress == 0
    assert "generation 2 could not start: rank 4: damaged on node0" in [
        line.what for line in world.incidents[-1].actions
    ]


def test_a_start_that_fails_for_another_reason_says_nothing_against_replica_snapshots() -> None:
    world = with_a_lost_node()
    before = world.state.record.resumed_step
    spare = world.node_states["node3"]
    del spare.ranks[:]
    spare.stopped = True
    spare.failed_generation, spare.failure = world.state.record.generation, "cannot find the rendezvous"
    restart(world)
    record = world.state.record
    assert (record.source, record.resumed_step, record.generation) == (store.SOURCE_REPLICA, before, 3)


def test_a_command_that_is_repeated_names_the_holders_again() -> None:
    world = with_a_lost_node()
    spare = world.node_states["node3"]
    spare.generation = 1
    world.tick(seconds=3.0)
    (again,) = [command.start for name, command in world.commands[-1:] if name == "node3"]
    assert [one.rank for one in again.replica_holders] == [4, 5]


def test_ranks_of_another_launcher_get_replica_snapshots_and_after_a_failure_the_checkpoint() -> None:
    world = Restored(nodes=2)
    world.spec.restarts_without_progress = 0
    world.wait(1, [10, 11], size=4)
    first = world.nodes["a"]
    first.checkpoints.append(10)
    first.replicas.CopyFrom(store.NodeReplicas(address="a:7", held=[held(20, 0, 1, 2, 3, generation=6)]))
    world.wait(1, [20, 21], node="b", size=4)
    # No number of a generation is used twice: snapshots of both would be taken for one set.
    assert world.chosen == [(name, store.SOURCE_REPLICA, 20, 7) for name in ("a", "b")]
    on_a, on_b = (one.start for _, one in world.starts)
    assert (on_a.replica_generation, list(on_a.replica_holders)) == (6, [])
    assert list(on_b.replica_holders) == [store.ReplicaHolder(rank=rank, address="a:7") for rank in (2, 3)]

    world.nodes["b"].failed_generation, world.nodes["b"].failure = 7, "a:7 is unreachable"
    world.tick()
    assert world.chosen[2:] == [(name, store.SOURCE_CHECKPOINT, 10, 8) for name in ("a", "b")]
    assert world.state.record.restarts_without_progress == 0
