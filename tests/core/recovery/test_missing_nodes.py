"""Runs that train on with fewer data-parallel replicas while nodes are missing, and with all of them again."""

import pytest

from holdfast_proto.v1 import store_pb2 as store
from tests.core.checkpointing.replicating import replicating
from tests.core.runs import edited_record, restart, send_event, set_ranks
from tests.support.core_world import World
from tests.support.replica_nodes import offer, replicate

WAIT_S = 60.0
PER_NODE = 2


def training(nodes: int = 3, *, least: int = 1, replica_ranks: int = 1, checkpoints: bool = True) -> World:
    """Return a run that trains with ``nodes`` nodes of two ranks, and has a checkpoint and a newer set of replicas."""
    world = replicating(nodes, checkpoints=[0] if checkpoints else [])
    world.spec.min_replicas, world.spec.resize_after_s = least, WAIT_S
    publish(world, replica_ranks)
    with edited_record(world) as record:
        record.replica_ranks = replica_ranks
    world.tick()
    replicate(world)
    world.train(15)
    return world


def publish(world: World, replica_ranks: int = 1) -> None:
    """Let agents and ranks show what they show in real runs."""
    for node in world.node_states.values():
        node.world_size = len(world.state.record.nodes) * PER_NODE
    set_ranks(world, replica_ranks=replica_ranks)


def lose(world: World, name: str) -> None:
    """Let a node vanish, and the leader stop the ranks of the others."""
    del world.node_states[name]
    world.until("stopping")


def spare(world: World, name: str) -> None:
    """Let a node be ready for the run."""
    world.node_states[name] = store.NodeState(run="r", node=name, ready=True, stopped=True, instance="i")
    offer(world.node_states[name])


def wait(world: World, seconds: float) -> None:
    """Let time pass in ticks of a second."""
    for _ in range(round(seconds)):
        world.tick(seconds=1.0)


def commit(world: World, step: int) -> None:
    """Let all nodes see a checkpoint."""
    for node in world.node_states.values():
        node.checkpoints.append(step)
    world.tick()


def written(world: World) -> dict[str, list[int]]:
    """Return the ranks whose shards each node is to write, by its newest command."""
    return {name: list(one.persist_replicas.ranks) for name, one in world.commands if one.HasField("persist_replicas")}


def starts(world: World) -> dict[str, tuple[int, int, int, int]]:
    """Return first rank, world size, source and step of the newest generation's starts."""
    newest = [one for one in world.commands if one[1].generation == world.state.record.generation]
    sent = {name: one.start for name, one in newest if one.HasField("start")}
    return {name: (one.first_rank, one.world_size, one.source, one.step) for name, one in sent.items()}


def story(world: World) -> list[str]:
    return [line.what for line in world.incidents[-1].actions]


def shrunk(**options: bool) -> World:
    """Return a run that trains with two of three nodes."""
    world = training(**options)
    lose(world, "node2")
    wait(world, WAIT_S + 1)
    commit(world, world.state.record.resize.step)
    world.until("starting")
    world.nodes = 2
    publish(world)
    for rank in (rank for node in world.node_states.values() for rank in node.ranks):
        rank.snapshots.clear()
    world.train(5)
    assert world.phase == "running"
    return world


def test_after_the_wait_the_nodes_that_are_left_write_the_newest_state_and_start_from_it_with_fewer_ranks() -> None:
    world = training()
    newest = max(one.step for one in world.node_states["node0"].replicas.held)
    lose(world, "node1")
    wait(world, WAIT_S - 2)
    assert not written(world) and world.phase == "stopping"
    wait(world, 4)
    shares = written(world)
    assert sorted(rank for ranks in shares.values() for rank in ranks) == list(range(3 * PER_NODE))
    held = {
        name: {rank for one in node.replicas.held for rank in one.ranks} for name, node in world.node_states.items()
    }
    assert all(set(ranks) <= held[name] for name, ranks in shares.items())
    assert {one.persist_replicas.world_size for one in world.sent("persist_replicas")} == {6}
    assert world.phase == "stopping"
    commit(world, newest)
    assert starts(world) == {
        "node0": (0, 4, store.SOURCE_CHECKPOINT, newest),
        "node2": (2, 4, store.SOURCE_CHECKPOINT, newest),
    }
    assert [line for line in story(world) if "node" in line or "snapshots" in line] == [
        "waits 60 s for node node1, or for a spare, and then trains on without (--min-replicas)",
        "no node has come: the run trains on with 2 of 3 nodes, 4 of 6 ranks",
        f"the snapshots of step {newest} are written as a checkpoint, to start from",
    ]


def test_a_spare_that_comes_in_time_takes_the_place() -> None:
    world = training()
    lose(world, "node1")
    wait(world, WAIT_S / 2)
    spare(world, "node9")
    world.until("starting")
    assert list(world.state.record.nodes) == ["node0", "node9", "node2"]
    assert not world.state.record.HasField("resize")


def test_a_node_that_is_missed_late_is_waited_for_as_long() -> None:
    world = training()
    world.obeys = False  # as ranks that hang in the kernel
    world.end(1, signal=9)
    world.until("stopping")
    wait(world, 2 * WAIT_S)
    world.obeys = True
    del world.node_states["node2"]
    wait(world, WAIT_S - 2)
    assert len(world.state.record.nodes) == 3
    wait(world, 4)
    assert len(world.state.record.nodes) == 2


@pytest.mark.parametrize(
    ("least", "replica_ranks"),
    [(0, 1), (5, 1), (1, 0), (2, 4)],
    ids=["not asked for", "too few replicas", "a script of one size", "too few whole replicas"],
)
def test_a_run_that_may_not_shrink_waits_for_the_node(least: int, replica_ranks: int) -> None:
    world = training(least=least, replica_ranks=replica_ranks)
    lose(world, "node1")
    wait(world, 10 * WAIT_S)
    assert (world.phase, len(world.state.record.nodes)) == ("stopping", 3)
    told = [line for line in story(world) if line.startswith("waits for node node1: ")]
    assert len(told) == (least > 0)
    assert ("no rank has said" in "".join(told)) == (replica_ranks == 0)
    world.node_states["node1"] = store.NodeState(run="r", node="node1", ready=True, stopped=True, instance="i")
    world.until("starting")


def test_only_whole_replicas_train_and_a_node_that_is_left_over_is_a_spare() -> None:
    world = training(nodes=4, replica_ranks=4)
    lose(world, "node1")
    wait(world, WAIT_S + 1)
    assert list(world.state.record.nodes) == ["node0", "node2"]
    assert world.node_states["node3"].stopped
    what = "no node has come: the run trains on with 2 of 4 nodes, 4 of 8 ranks; replicas are whole, so node3 must wait"
    assert what in story(world)


def test_without_a_newer_state_in_memory_the_run_starts_from_its_checkpoint() -> None:
    world = training()
    for node in world.node_states.values():
        node.replicas.ClearField("held")
    lose(world, "node1")
    wait(world, WAIT_S + 1)
    assert not written(world)
    assert set(starts(world).values()) == {(0, 4, store.SOURCE_CHECKPOINT, 0), (2, 4, store.SOURCE_CHECKPOINT, 0)}


def test_a_run_without_any_state_waits_rather_than_to_begin_from_the_seed() -> None:
    world = training(checkpoints=False)
    for node in world.node_states.values():
        node.replicas.ClearField("held")
    lose(world, "node1")
    wait(world, 10 * WAIT_S)
    assert (world.phase, len(world.state.record.nodes)) == ("stopping", 3)
    assert any("nothing is left to train on from" in line for line in story(world))


def test_a_state_that_cannot_be_written_leads_to_the_checkpoint_before_it() -> None:
    world = training()
    lose(world, "node1")
    wait(world, WAIT_S + 1)
    step = world.state.record.resize.step
    send_event(world, checkpoint_failed=store.CheckpointFailed(step=step, reason="the disk is full"))
    assert set(starts(world).values()) == {(0, 4, store.SOURCE_CHECKPOINT, 0), (2, 4, store.SOURCE_CHECKPOINT, 0)}


def test_a_state_that_cannot_be_written_is_tried_again_if_it_is_the_only_one() -> None:
    world = training(checkpoints=False)
    lose(world, "node1")
    wait(world, WAIT_S + 1)
    step, before = world.state.record.resize.step, len(world.sent("persist_replicas"))
    send_event(world, checkpoint_failed=store.CheckpointFailed(step=step, reason="the disk is full"))
    wait(world, 20)
    assert world.phase == "stopping"
    assert len(world.sent("persist_replicas")) == before
    wait(world, 20)
    assert len(world.sent("persist_replicas")) > before
    commit(world, step)
    assert {one[1:] for one in starts(world).values()} == {(4, store.SOURCE_CHECKPOINT, step)}


@pytest.mark.parametrize("name", ["node1", "node9"])
def test_a_node_that_comes_before_the_smaller_world_starts_makes_it_needless(name: str) -> None:
    world = training()
    lost = store.NodeState()
    lost.CopyFrom(world.node_states["node1"])
    lose(world, "node1")
    wait(world, WAIT_S + 3)
    assert len(world.state.record.nodes) == 2 and written(world)
    if name == "node1":  # it was only cut off, and its ranks hang
        world.node_states["node1"] = lost
    else:
        spare(world, name)
    world.until("starting")
    assert list(world.state.record.nodes) == ["node0", name, "node2"]
    assert not world.state.record.HasField("resize")
    source = store.SOURCE_MEMORY if name == "node1" else store.SOURCE_REPLICA
    assert {one[1:3] for one in starts(world).values()} == {(6, source)}


def test_a_node_that_comes_after_the_smaller_world_was_started_leads_to_the_checkpoint() -> None:
    world = training()
    lose(world, "node1")
    wait(world, WAIT_S + 1)
    step = world.state.record.resize.step
    commit(world, step)
    assert world.phase == "starting"
    del world.node_states["node2"]
    world.until("stopping")
    for name in ("node1", "node2"):
        spare(world, name)
    restart(world)
    assert {one[1:] for one in starts(world).values()} == {(6, store.SOURCE_CHECKPOINT, step)}


def test_a_node_that_is_lost_before_the_first_step_is_left_out_too() -> None:
    world = World(nodes=3, ranks_per_node=PER_NODE, checkpoints=[7])
    world.spec.min_replicas, world.spec.resize_after_s = 1, WAIT_S
    world.until("starting")
    publish(world, replica_ranks=2)
    world.end(5, signal=9)
    world.until("stopping")
    del world.node_states["node2"]
    wait(world, WAIT_S + 2)
    assert {one[1:] for one in starts(world).values()} == {(4, store.SOURCE_CHECKPOINT, 7)}


def test_a_second_loss_is_waited_for_too_and_the_first_world_stays_the_one_that_is_written() -> None:
    world = training(nodes=4)
    lose(world, "node3")
    wait(world, WAIT_S + 1)
    step = world.state.record.resize.step
    commit(world, step)
    del world.node_states["node2"]
    world.until("stopping")
    wait(world, WAIT_S - 2)
    assert list(world.state.record.nodes) == ["node0", "node1", "node2"]
    wait(world, 4)
    assert world.state.record.resize.world_size == 8
    assert {one[1:] for one in starts(world).values()} == {(4, store.SOURCE_CHECKPOINT, step)}


def test_a_failed_start_with_fewer_ranks_is_never_tried_from_the_memory_of_the_larger_world() -> None:
    world = training()
    lose(world, "node2")
    wait(world, WAIT_S + 1)
    step = world.state.record.resize.step
    world.obeys = False
    commit(world, step)
    world.obeys = True
    assert world.state.record.source == store.SOURCE_CHECKPOINT
    failed = world.node_states["node1"]  # its ranks, and those of node0, still have snapshots of the world before
    failed.failed_generation, failed.failure = world.state.record.generation, "no rendezvous"
    world.node_states["node0"].failed_generation = world.state.record.generation
    restart(world)
    assert (world.state.record.source, world.state.record.resumed_step) == (store.SOURCE_CHECKPOINT, step)


def test_a_new_leader_continues_a_change_where_it_is() -> None:
    world = training()
    lose(world, "node1")
    world.lose_leader()
    wait(world, WAIT_S + 1)
    world.lose_leader()
    wait(world, 3)
    commit(world, world.state.record.resize.step)
    assert {one[1:3] for one in starts(world).values()} == {(4, store.SOURCE_CHECKPOINT)}


def test_a_leader_that_finds_the_store_emptied_takes_over_the_smaller_world() -> None:
    world = shrunk()
    world.empty_store()
    world.train(2)
    assert (world.phase, world.state.world_size, world.state.record.replica_ranks) == ("running", 4, 1)


def test_a_node_that_is_back_is_taken_in_from_a_checkpoint_that_is_taken_for_it() -> None:
    world = shrunk()
    spare(world, "node2")
    world.train(1)
    world.now += WAIT_S - 5
    world.train(5)
    assert not world.sent("take_checkpoint")
    world.now += 10
    world.train(2)
    (step,) = {one.take_checkpoint.step for one in world.sent("take_checkpoint")}
    world.train(12)
    assert world.phase == "running" and world.state.record.generation == 2
    commit(world, step)
    world.until("starting")
    assert starts(world) == {
        f"node{number}": (PER_NODE * number, 6, store.SOURCE_CHECKPOINT, step) for number in range(3)
    }
    world.nodes = 3
    publish(world)
    world.train(3)
    assert not world.state.record.HasField("resize") and not world.state.record.shrunk_incident
    assert story(world)[-1] == "node node2 is taken in: the run trains on with 3 of 3 nodes, 6 of 6 ranks"
    assert world.incidents[-1].state == store.INCIDENT_STATE_RECOVERED


@pytest.mark.parametrize("how", ["its rank dies", "it is lost again"])
def test_a_node_that_comes_back_broken_never_fails_the_run_and_is_tried_later_each_time(how: str) -> None:
    world = shrunk()
    world.spec.restarts_without_progress = 1
    for attempt in range(3):
        spare(world, "node2")
        world.train(1)
        asked = len(world.sent("take_checkpoint"))
        wait_s = WAIT_S * 2**attempt
        world.now += wait_s - 5
        world.train(2)
        assert len(world.sent("take_checkpoint")) == asked
        world.now += 10
        world.train(1)
        step = world.state.record.resize.step
        commit(world, step)
        world.until("starting")
        assert len(starts(world)) == 3
        world.nodes = 3
        world.end(5, signal=9)
        if how == "it is lost again":
            del world.node_states["node2"]
        world.until("stopping")
        world.until("starting")
        assert starts(world) == {
            f"node{number}": (PER_NODE * number, 4, store.SOURCE_CHECKPOINT, step) for number in range(2)
        }
        world.node_states.pop("node2", None)
        world.nodes = 2
        publish(world)
        world.train(5)
        assert (world.phase, world.state.record.failed_growths) == ("running", attempt + 1)
    assert "the larger world has not trained: the run trains on with 2 of 3 nodes, 4 of 6 ranks" in story(world)


def test_a_node_that_is_lost_while_it_is_taken_in_is_not_waited_for() -> None:
    world = shrunk()
    spare(world, "node2")
    world.train(1)
    world.now += WAIT_S
    world.train(2)
    step = world.state.record.resize.step
    world.obeys = False
    commit(world, step)
    assert (world.phase, len(world.state.record.nodes)) == ("stopping", 3)
    del world.node_states["node2"]
    world.obeys = True
    wait(world, 4)
    assert {one[1:] for one in starts(world).values()} == {(4, store.SOURCE_CHECKPOINT, step)}


def test_a_run_that_has_all_its_nodes_never_takes_more_in() -> None:
    world = training()
    spare(world, "node9")
    world.now += 10 * WAIT_S
    world.train(3)
    assert world.phase == "running" and not world.sent("take_checkpoint")


def test_no_node_is_taken_in_while_newer_states_may_be_bad() -> None:
    world = shrunk()
    spare(world, "node2")
    world.train(1)
    with edited_record(world) as record:
        record.loss_counts.nonfinite_since = record.newest_step
    world.now += WAIT_S
    world.tick()
    assert world.phase == "running" and not world.sent("take_checkpoint")
    world.train(1)  # a loss that is finite
    world.tick()
    assert world.sent("take_checkpoint")


@pytest.mark.parametrize("why", ["the node leaves", "the checkpoint fails", "a rank dies"])
def test_a_node_is_not_taken_in_if_that_cannot_be_done_safely(why: str) -> None:
    world = shrunk()
    spare(world, "node2")
    world.train(1)
    world.now += WAIT_S
    world.train(2)
    step = world.state.record.resize.step
    assert step > 0
    if why == "the node leaves":
        del world.node_states["node2"]
    elif why == "the checkpoint fails":
        send_event(world, checkpoint_failed=store.CheckpointFailed(step=step, reason="the disk is full"))
    else:
        world.end(1, signal=9)
        world.until("starting")
    world.tick()
    assert not world.state.record.HasField("resize")
    assert len(world.state.record.nodes) == 2
    if why != "a rank dies":
        assert world.phase == "running"
