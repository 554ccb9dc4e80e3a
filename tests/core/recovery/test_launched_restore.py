"""The state of ranks that another launcher starts: chosen once all of them wait for it."""

from collections.abc import Sequence

import pytest

from holdfast_core import coordinator
from holdfast_core.model import CheckpointAnswered, CheckpointRequest, Send
from holdfast_core.recovery.hang_aborts import REACTION_PATIENCE_S
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from tests.core.recovery.test_observed import Observed


class Restored(Observed):
    """Nodes ``a`` and ``b`` with two ranks each, whose state is saved and restored."""

    def __init__(self, nodes: int = 1) -> None:
        super().__init__(nodes)
        self.spec.restores = True
        self.spec.restarts_without_progress = 2
        self.starts: list[tuple[str, store.NodeCommand]] = []

    def tick(self, *requests: object, seconds: float = 0.1, events: tuple[store.Event, ...] = ()) -> None:
        super().tick(*requests, seconds=seconds, events=events)  # type: ignore[arg-type]
        sent = [one for one in self.actions if isinstance(one, Send)]
        self.starts += [(one.node, one.command) for one in sent if one.command.HasField("start")]

    def wait(self, generation: int, pids: Sequence[int], *, node: str = "a", size: int = 0, **held: list[int]) -> None:
        """Let a launcher start ranks that wait for their state. ``held``: steps in memory, by ``r`` and rank."""
        before = self.nodes.get(node, store.NodeState())
        self.launch(generation, pids, node=node, size=size)
        for name in ("checkpoints", "checkpoint_generation", "damaged_checkpoints"):
            self.nodes[node].MergeFrom(only(before, name))
        if before.HasField("replicas"):
            self.nodes[node].replicas.CopyFrom(before.replicas)
        for rank in self.nodes[node].ranks:
            rank.awaits_start = True
            rank.snapshots.extend(held.get(f"r{rank.rank}", []))
            rank.progress.phase = common.PHASE_INIT
        self.tick()

    def give(self, *nodes: str) -> None:
        """Let nodes carry out the newest command."""
        for name in nodes:
            for rank in self.nodes[name].ranks:
                rank.awaits_start = False
            self.nodes[name].restored_generation = self.starts[-1][1].start.run_generation
        self.tick()

    def train(self, step: int) -> None:
        """Let all ranks end ``step``."""
        for rank in (rank for node in self.nodes.values() for rank in node.ranks):
            rank.awaits_start, rank.steps_done, rank.first_step_ended_unix_s = False, 1, self.now
            rank.progress.step, rank.progress.phase = step, common.PHASE_FORWARD_BACKWARD
        self.tick()

    @property
    def chosen(self) -> list[tuple[str, int, int, int]]:
        """Node, source, step and generation of each command to start."""
        return [(node, one.start.source, one.start.step, one.start.run_generation) for node, one in self.starts]


def only(node: store.NodeState, name: str) -> store.NodeState:
    """Return a state with one field of ``node``."""
    made = store.NodeState()
    value = getattr(node, name)
    if hasattr(value, "extend"):
        getattr(made, name).extend(value)
    else:
        setattr(made, name, value)
    return made


def trained() -> Restored:
    """Return a world on one node that trains from the seed."""
    world = Restored()
    world.wait(1, [10, 11])
    world.give("a")
    world.train(0)
    assert world.where == ("running", 1)
    return world


def test_a_world_waits_until_all_its_ranks_have_said_hello_and_then_gets_one_state() -> None:
    world = Restored(nodes=2)
    world.wait(1, [10, 11], size=4)
    assert world.chosen == []
    world.wait(1, [20, 21], node="b", size=4)
    assert world.chosen == [("a", store.SOURCE_SEED, -1, 1), ("b", store.SOURCE_SEED, -1, 1)]


def test_a_world_in_which_only_some_ranks_have_a_state_does_not_make_them_wait() -> None:
    world = Restored()
    world.launch(1, [10, 11])
    assert world.chosen == []
    world.nodes["a"].ranks[1].awaits_start = True
    world.tick()
    assert world.chosen == [("a", store.SOURCE_SEED, -1, 1)]


def test_the_first_generation_has_a_number_that_no_checkpoint_has() -> None:
    world = Restored()
    world.nodes["a"].checkpoints.append(40)
    world.nodes["a"].checkpoint_generation = 7
    world.wait(1, [10, 11])
    assert world.chosen == [("a", store.SOURCE_CHECKPOINT, 40, 8)]
    assert world.starts[0][1].generation == 1  # the node's own number
    assert world.starts[0][1].start.world_size == 2
    assert world.state.record.resumed_step == 40


def test_a_world_that_gets_another_state_keeps_its_size() -> None:
    world = Restored()
    world.wait(1, [10, 11])
    world.nodes["a"].failed_generation = 1
    world.nodes["a"].failure = "disk"
    world.tick()
    assert [one.start.world_size for _, one in world.starts] == [2, 2]


def test_ranks_that_have_ended_and_whose_node_has_not_said_so_get_no_state_with_the_next_ones() -> None:
    world = Restored(nodes=2)
    world.wait(1, [10, 11], size=4)
    world.wait(1, [20, 21], node="b", size=4)
    first = len(world.chosen)
    world.wait(2, [22, 23], node="b", size=4)
    assert len(world.chosen) == first
    world.wait(2, [12, 13], size=4)
    assert world.chosen[first:] == [("a", store.SOURCE_SEED, -1, 2), ("b", store.SOURCE_SEED, -1, 2)]


def test_a_rank_that_has_finished_does_not_keep_the_state_from_those_that_wait() -> None:
    world = Restored(nodes=2)
    world.wait(1, [10, 11], size=4)
    world.wait(1, [20, 21], node="b", size=4)
    world.give("a")
    world.end(0, 1, code=0, finished=True)
    world.tick(seconds=3.0)
    assert world.chosen[-1] == ("b", store.SOURCE_SEED, -1, 1)
    assert len(world.chosen) == 3


def test_ranks_that_wait_again_begin_a_generation_although_a_new_leader_has_not_known_the_ones_before() -> None:
    world = Restored(nodes=2)
    world.wait(1, [10, 11], size=4)
    world.wait(1, [20, 21], node="b", size=4)
    world.give("a")
    again = world.nodes.pop("a")
    world.state = coordinator.begin(world.spec, world.state.record)
    world.wait(2, [22, 23], node="b", size=4)
    sent = len(world.chosen)
    world.nodes["a"] = again
    for rank in again.ranks:
        rank.pid, rank.awaits_start = rank.pid + 10, True
    world.tick(seconds=3.0)
    world.tick()
    assert world.chosen[sent:] == [("a", store.SOURCE_SEED, -1, 2), ("b", store.SOURCE_SEED, -1, 2)]


def test_a_number_that_the_store_has_lost_is_not_used_again_for_ranks_that_wait() -> None:
    world = Restored(nodes=2)
    world.wait(1, [10, 11], size=4)
    world.nodes["a"].restored_generation = 5
    world.wait(1, [20, 21], node="b", size=4)
    assert world.chosen == [("a", store.SOURCE_SEED, -1, 6), ("b", store.SOURCE_SEED, -1, 6)]
    assert world.state.record.restarts_total == 0


def test_a_node_that_has_not_passed_the_state_on_gets_the_command_again_and_the_others_do_not() -> None:
    world = Restored(nodes=2)
    world.wait(1, [10, 11], size=4)
    world.wait(1, [20, 21], node="b", size=4)
    world.give("a")
    world.tick(seconds=3.0)
    assert [node for node, *_ in world.chosen] == ["a", "b", "b"]


def test_after_a_death_the_next_world_continues_from_the_newest_step_that_all_hold_and_the_incident_recovers() -> None:
    world = trained()
    world.train(30)
    world.end(1, signal=9)
    assert world.where == ("gathering", 1)
    world.wait(2, [12, 13], r0=[19, 29], r1=[19])
    assert world.chosen[-1] == ("a", store.SOURCE_MEMORY, 19, 2)
    world.give("a")
    world.train(20)
    (incident,) = world.incidents
    assert (world.where, incident.state) == (("running", 2), store.INCIDENT_STATE_RECOVERED)
    assert (incident.resumed_step, incident.lost_steps) == (19, 10)
    assert "generation 2 starts from memory after step 19" in [line.what for line in incident.actions]


def test_ranks_that_train_already_never_get_another_state_though_the_store_has_lost_the_record() -> None:
    world = trained()
    world.train(5)
    emptied = Restored()
    emptied.nodes, emptied.now = world.nodes, world.now
    emptied.tick()
    emptied.train(6)
    assert (emptied.where, emptied.chosen) == (("running", 1), [])


def test_a_node_that_cannot_prepare_the_state_leads_to_another_choice_while_its_ranks_wait() -> None:
    world = Restored()
    world.nodes["a"].checkpoints.extend([30, 40])
    world.wait(1, [10, 11])
    world.nodes["a"].failed_generation, world.nodes["a"].failure = 1, "step 40: damaged"
    world.tick(events=(store.Event(node="a", checkpoint_unreadable=store.CheckpointUnreadable(step=40, reason="x")),))
    assert [step for _, _, step, _ in world.chosen] == [40, 30]
    assert world.chosen[-1][-1] == 2


def test_a_start_that_fails_again_and_again_ends_the_run_and_keeps_its_state() -> None:
    world = Restored()
    world.wait(1, [10, 11])
    for _ in range(3):
        world.nodes["a"].failed_generation = world.starts[-1][1].start.run_generation
        world.nodes["a"].failure = "no room for a slot"
        world.tick()
    assert world.where[0] == "failed"
    assert world.state.record.outcome == "the run was not started: no room for a slot"


def test_a_launcher_that_ends_with_an_error_ends_the_run_once_all_its_ranks_have_ended() -> None:
    world = trained()
    world.end(0, signal=9)
    world.tick(events=(store.Event(node="a", launcher_end=store.LauncherEnd(code=1)),))
    assert world.where[0] == "gathering"
    world.end(1, code=1)
    world.tick(seconds=30.0)
    assert (world.where[0], world.incidents[0].state) == ("failed", store.INCIDENT_STATE_FAILED)
    assert "persist_snapshot" not in world.commands  # no rank has a snapshot


def test_a_run_is_not_over_while_the_launcher_of_another_node_may_start_the_ranks_again() -> None:
    world = Restored(nodes=2)
    world.wait(1, [10, 11], size=4)
    world.wait(1, [20, 21], node="b", size=4)
    world.give("a", "b")
    world.train(0)
    ended = [store.Event(node=node, launcher_end=store.LauncherEnd(code=137)) for node in ("b", "a")]
    world.tick(events=(ended[0],))
    world.end(0, 1, 2, 3, code=1)
    world.tick(seconds=30.0)
    assert world.where[0] == "stopping"
    world.tick(events=(ended[1],))
    assert world.where[0] == "failed"


def test_a_launcher_that_does_nothing_is_named_and_the_ranks_that_are_left_are_judged_again() -> None:
    world = trained()
    world.end(1, signal=9)
    world.tick(seconds=30.0)
    assert world.where[0] == "stopping"
    world.tick(seconds=REACTION_PATIENCE_S)
    assert (world.where[0], world.incidents[0].state) == ("running", store.INCIDENT_STATE_NOTED)
    world.tick(seconds=1.0)
    assert world.where[0] == "running"


def test_an_operator_gets_a_checkpoint() -> None:
    world = trained()
    world.tick(CheckpointRequest())
    (answer,) = [one for one in world.actions if isinstance(one, CheckpointAnswered)]
    assert "no step has been timed yet" in answer.reason


@pytest.mark.parametrize(("left", "ends"), [(2, True), (0, False), (None, False)])
def test_a_hung_rank_is_ended_only_while_the_launcher_has_restarts_left(left: int | None, ends: bool) -> None:
    world = trained()
    world.spec.on_hang = store.HANG_ACTION_RESTART
    if left is not None:
        world.nodes["a"].restarts_left = left
    world.tick()
    assert world.state.ends_hung_ranks is ends


def hold(world: Restored, *nodes: str, step: int, size: int, generation: int) -> None:
    """Let nodes hold the replica snapshots of a whole world."""
    for name in nodes:
        replicas = world.nodes[name].replicas
        replicas.address = f"{name}:7"
        replicas.held.add(step=step, generation=generation, world_size=size, ranks=range(size))


def relaunch(world: Restored, generation: int, *nodes: str) -> None:
    """Let a launcher start two ranks on each of these nodes, and none on others."""
    for name in set(world.nodes) - set(nodes):
        del world.nodes[name]
    for number, name in enumerate(nodes):
        pids = [100 * generation + 10 * number, 100 * generation + 10 * number + 1]
        world.wait(generation, pids, node=name, size=2 * len(nodes), r0=[30], r1=[30], r2=[30], r3=[30])


def commanded(world: Restored) -> dict[str, store.PersistReplicas]:
    """Return what the nodes are to write now."""
    world.tick(seconds=3.0)
    sent = [one for one in world.actions if isinstance(one, Send) and one.command.HasField("persist_replicas")]
    return {one.node: one.command.persist_replicas for one in sent}


def test_a_world_of_another_size_gets_the_newest_set_of_the_one_before_as_a_checkpoint() -> None:
    world = Restored(nodes=2)
    world.wait(1, [10, 11], size=4)
    world.wait(1, [20, 21], node="b", size=4)
    world.give("a", "b")
    world.train(20)
    hold(world, "a", step=20, size=4, generation=1)
    started = len(world.starts)
    relaunch(world, 2, "a")
    asked = commanded(world)
    assert {name: list(one.ranks) for name, one in asked.items()} == {"a": [0, 1, 2, 3]}
    assert {(one.step, one.generation, one.world_size) for one in asked.values()} == {(20, 1, 4)}
    assert len(world.starts) == started
    world.nodes["a"].checkpoints.append(20)
    world.tick()
    assert world.chosen[started:] == [("a", store.SOURCE_CHECKPOINT, 20, 2)]
    world.give("a")
    world.train(25)
    assert (world.state.record.trained_world_size, world.state.record.HasField("resize")) == (2, False)


def test_a_world_that_has_grown_gets_what_the_smaller_one_has_in_memory_as_a_checkpoint() -> None:
    world = trained()
    hold(world, "a", step=20, size=2, generation=1)
    for rank in world.nodes["a"].ranks:
        rank.snapshots.append(30)
    world.tick()
    world.nodes["b"] = store.NodeState(node="b", instance="i")
    started = len(world.starts)
    relaunch(world, 2, "a", "b")
    asked = commanded(world)
    assert {name: list(one.ranks) for name, one in asked.items()} == {"a": [0, 1], "b": []}
    assert {(one.step, one.generation, one.world_size) for one in asked.values()} == {(30, 1, 2)}
    assert len(world.starts) == started
    world.nodes["a"].checkpoints.append(30)
    world.tick()
    assert {one[1:3] for one in world.chosen[started:]} == {(store.SOURCE_CHECKPOINT, 30)}


def test_a_world_that_has_its_size_again_before_it_trained_needs_no_checkpoint() -> None:
    world = Restored(nodes=2)
    world.wait(1, [10, 11], size=4)
    world.wait(1, [20, 21], node="b", size=4)
    world.give("a", "b")
    world.train(20)
    hold(world, "a", "b", step=20, size=4, generation=1)
    kept, started = store.NodeState(), len(world.starts)
    kept.CopyFrom(world.nodes["b"])
    relaunch(world, 2, "a")
    assert world.state.record.resize.world_size == 4
    world.nodes["b"] = kept
    relaunch(world, 3, "a", "b")
    assert {one[1:3] for one in world.chosen[started:]} == {(store.SOURCE_REPLICA, 20)}
    assert not world.state.record.HasField("resize")
