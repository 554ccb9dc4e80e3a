"""The core of runs that another launcher starts."""

from collections.abc import Sequence
from typing import Any

from holdfast_core import coordinator
from holdfast_core.model import Action, Observation, Request, Send, StopRequest, ranks_of
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store


class Observed:
    """Nodes ``a`` and ``b`` with two ranks each, which start and end without the agents."""

    def __init__(self, nodes: int = 1) -> None:
        self.spec = store.RunSpec(run="r", nodes=nodes, mode=store.MODE_OBSERVE, preset=store.PRESET_FAST, instance="i")
        self.state = coordinator.begin(self.spec)
        self.now = 1_000_000.0
        self.nodes = {"a": store.NodeState(run="r", node="a", instance="i", stopped=True)} if nodes == 1 else {}
        self.commands: set[str | None] = set()
        self.actions: list[Action] = []

    def launch(self, generation: int, pids: Sequence[int], *, node: str = "a", step: int = 0, size: int = 0) -> None:
        """Let a launcher start the ranks of a node. ``size``: of the world; 0: it has no others."""
        made = store.NodeState(run="r", node=node, instance="i", generation=generation, world_size=size or len(pids))
        for rank, pid in enumerate(pids, 2 * (node != "a")):
            progress = common.Progress(step=step, phase=common.PHASE_FORWARD_BACKWARD)
            made.ranks.add(rank=rank, pid=pid, life=store.LIFE_RUNNING, progress=progress, steps_done=step)
            made.ranks[-1].first_step_ended_unix_s = self.now if step else 0.0
        self.nodes[node] = made
        self.tick()

    def end(self, *numbers: int, **ended: Any) -> None:
        """End ranks at one moment."""
        for rank in (rank for node in self.nodes.values() for rank in node.ranks if rank.rank in numbers):
            rank.life = store.LIFE_EXITED
            rank.exit.CopyFrom(store.RankExit(step=5, exited_unix_s=self.now, order=rank.rank, **ended))
        self.tick()

    def report(self, step: int, node: str = "a", generation: int = 1, **numbers: Any) -> None:
        summary = store.StepSummary(step=step, generation=generation, ended_unix_s=self.now, **numbers)
        self.tick(events=(store.Event(node=node, generation=generation, step_summary=summary),))

    def tick(self, *requests: Request, seconds: float = 0.1, events: tuple[store.Event, ...] = ()) -> None:
        self.now += seconds
        shown = {name: store.NodeState() for name in self.nodes}
        for name, node in self.nodes.items():
            shown[name].CopyFrom(node)
            shown[name].reported_unix_s = self.now
        observation = Observation(nodes=shown, events=events, requests=requests)
        self.state, self.actions = coordinator.step(self.state, self.now, observation)
        self.commands |= {action.command.WhichOneof("kind") for action in self.actions if isinstance(action, Send)}

    @property
    def where(self) -> tuple[str, int]:
        phase = store.RunPhase.Name(self.state.record.phase).removeprefix("RUN_PHASE_").lower()
        return phase, self.state.record.generation

    @property
    def seen(self) -> list[int]:
        """The ranks of the present world that are known."""
        return sorted(ranks_of(self.state.nodes, self.state.record.generation))

    @property
    def incidents(self) -> list[store.Incident]:
        return list(self.state.incidents.values())

    @property
    def kinds(self) -> list[int]:
        return [incident.verdict.kind for incident in self.incidents]


def launched(step: int = 5, ranks: int = 2) -> Observed:
    """Return a world on one node that trains."""
    world = Observed()
    world.launch(1, range(10, 10 + ranks), step=step)
    return world


def on_two_nodes() -> Observed:
    """Return a world on two nodes that trains."""
    world = Observed(nodes=2)
    world.launch(1, [10, 11], step=3, size=4)
    world.launch(1, [20, 21], node="b", step=3, size=4)
    return world


def test_a_world_is_followed_from_its_first_hello_to_its_end_and_its_ranks_get_no_commands() -> None:
    world = Observed()
    world.tick()
    assert world.where == ("waiting", 0)
    world.launch(1, [10, 11])
    assert (world.where, list(world.state.record.nodes)) == (("starting", 1), ["a"])
    world.launch(1, [10, 11], step=3)
    assert world.where == ("running", 1)
    world.end(0, 1, code=0, finished=True)
    assert (world.where, world.kinds, world.commands) == (("finished", 1), [], {"finish"})


def test_a_world_is_not_over_while_its_ranks_do_not_report() -> None:
    world = launched()
    del world.nodes["a"]
    world.tick()
    assert world.where == ("running", 1)


def test_a_spare_takes_the_place_of_a_lost_node_although_the_leader_was_lost_with_it() -> None:
    world = on_two_nodes()
    assert world.where == ("running", 1)
    del world.nodes["b"]
    world.state = coordinator.begin(world.spec, world.state.record)
    world.tick()
    world.launch(1, [30, 31], node="c", size=4)
    world.launch(2, [12, 13], size=4)
    world.tick(seconds=3.0)
    generation = world.state.record.generation
    assert (generation, {name: node.generation for name, node in world.state.nodes.items()}) == (2, {"a": 2, "c": 2})


def test_a_spare_that_is_a_whole_world_takes_the_place_of_a_node_that_was_lost_before_it_was_one() -> None:
    world = Observed()
    world.launch(1, [10, 11], step=3)
    world.launch(2, [12], size=2)
    del world.nodes["a"]
    world.launch(1, [30, 31], node="c")
    for rank, number in zip(world.nodes["c"].ranks, (0, 1), strict=True):
        rank.rank = number
    world.tick()
    assert (list(world.state.record.nodes), world.seen) == (["c"], [0, 1])


def test_living_ranks_of_an_earlier_world_take_no_place_in_one_that_trains() -> None:
    world = on_two_nodes()
    for step in (0, 4):
        world.launch(2, [12, 13], size=4, step=step)
        world.launch(1, [30, 31], node="c", size=4, step=step)
    hidden = world.nodes.pop("c")
    world.tick(seconds=3.0)
    world.nodes["c"] = hidden
    world.tick()
    assert (world.where, set(world.state.record.nodes)) == (("running", 2), {"a", "c"})


def test_a_node_that_a_new_leader_sees_late_is_no_new_world() -> None:
    world = on_two_nodes()
    late = world.nodes.pop("b")
    world.state = coordinator.begin(world.spec, world.state.record)
    world.tick()
    world.nodes["b"] = late
    world.tick()
    assert world.where == ("running", 1)


def test_the_rank_that_died_first_is_named_once_however_many_die_with_it() -> None:
    world = launched(ranks=3)
    world.end(0)
    assert world.kinds == []  # an end without a status may be the fault of another rank
    world.end(1, 2)
    for _ in range(10):
        world.tick()
    (incident,) = world.incidents
    assert (incident.verdict.kind, incident.verdict.culprits[0]) == (store.VERDICT_KIND_DEAD_RANK, 0)
    assert (incident.state, world.commands) == (store.INCIDENT_STATE_NOTED, {"gather_evidence"})


def test_the_next_world_of_a_launcher_is_judged_by_itself() -> None:
    world = launched(step=9)
    world.end(1, signal=9)
    world.launch(2, [12, 13])
    record = world.state.record
    assert (world.where, record.newest_step, record.restarts_total) == (("starting", 2), -1, 1)
    assert world.state.reported_once == {}
    world.launch(2, [12, 13], step=9)
    world.end(1, signal=9)
    assert world.kinds == [store.VERDICT_KIND_DEAD_RANK] * 2


def test_new_processes_under_an_old_number_are_a_new_world_and_their_steps_count_at_once() -> None:
    world = launched(step=9)
    world.report(8)
    assert world.state.counted_steps == {"a": 8}
    world.launch(1, [12, 13])
    world.report(0)
    assert (world.where, world.state.counted_steps) == (("starting", 2), {"a": 0})


def test_a_new_leader_continues_where_the_last_one_was() -> None:
    world = Observed()
    world.launch(3, [10, 11], step=9)
    for record in (world.state.record, None):  # None: the store has lost everything
        world.state = coordinator.begin(world.spec, record)
        world.tick()
        assert world.where == ("running", 3)


def test_ranks_that_end_as_their_operator_wants_have_stopped_and_are_no_incident() -> None:
    world = launched()
    world.tick(StopRequest(60.0))
    world.end(0, signal=2)
    world.tick(seconds=5.0)
    assert (world.where, world.commands) == (("leaving", 1), set())
    world.end(1, code=1)
    assert (world.where, world.state.record.outcome) == (("finished", 1), "stopped by an operator")
    assert (world.kinds, world.commands) == ([], {"finish"})


def test_ranks_that_were_to_end_and_have_not_are_judged_again() -> None:
    world = launched()
    world.tick(StopRequest(60.0))
    world.tick(seconds=61.0)
    assert world.where == ("running", 1)
    world.end(0, signal=9)
    assert world.kinds == [store.VERDICT_KIND_DEAD_RANK]


def test_what_a_launcher_starts_after_it_was_to_end_is_a_new_world() -> None:
    world = launched()
    world.tick(StopRequest(60.0))
    world.launch(2, [12, 13])
    world.end(0, signal=9)
    assert (world.where, world.kinds) == (("starting", 2), [store.VERDICT_KIND_DEAD_RANK])


def test_a_bad_loss_that_would_stop_a_run_is_only_notified_of() -> None:
    world = Observed()
    world.spec.loss_policy.non_finite.CopyFrom(store.LossRule(action=store.LOSS_ACTION_STOP, budget=0))
    world.state = coordinator.begin(world.spec)
    world.launch(1, [11], step=3)
    bad = store.NonFinite(rank=0, quantity="loss")
    world.report(3, loss_sum=float("nan"), loss_count=1, duration_s=0.3, nonfinite=[bad])
    (incident,) = world.incidents
    assert incident.notify
    assert incident.actions[-1].what.startswith("the run is not stopped: another launcher has started its ranks")
    assert world.where == ("running", 1)
    assert "finish" not in world.commands


def test_a_world_over_two_nodes_begins_when_both_report() -> None:
    world = Observed(nodes=2)
    world.launch(1, [20, 21], node="b", step=3, size=4)
    assert (world.where, world.seen) == (("waiting", 0), [])
    world.launch(1, [10, 11], step=3, size=4)
    assert (world.where, world.seen, list(world.state.record.nodes)) == (("running", 1), [0, 1, 2, 3], ["a", "b"])


def test_a_complete_world_on_fewer_nodes_than_named_is_followed_too() -> None:
    world = Observed(nodes=2)
    world.launch(1, [10, 11], step=3)
    assert (world.where, world.seen) == (("running", 1), [0, 1])


def test_nodes_that_count_a_restart_differently_are_one_world() -> None:
    world = on_two_nodes()
    world.launch(2, [22, 23], node="b", size=4)  # ranks have failed there
    assert (world.where, world.seen) == (("starting", 2), [2, 3])
    world.launch(1, [12, 13], size=4)  # torchrun has restarted these as well, and counts nothing
    assert (world.where, world.seen) == (("starting", 2), [0, 1, 2, 3])
    world.report(0)
    assert world.state.counted_steps == {"a": 0}
    world.launch(1, [12, 13], step=2, size=4)
    world.launch(2, [22, 23], node="b", step=2, size=4)
    assert (world.where, world.seen) == (("running", 2), [0, 1, 2, 3])
    assert (world.state.record.restarts_total, world.kinds) == (1, [])


def test_a_node_that_joins_a_complete_world_begins_a_new_one() -> None:
    world = on_two_nodes()
    world.nodes["c"] = lost = world.nodes.pop("b")
    lost.node = "c"
    for rank in lost.ranks:
        rank.pid, rank.steps_done, rank.first_step_ended_unix_s = rank.pid + 10, 0, 0.0
    world.tick()
    assert (world.where, world.seen) == (("starting", 2), [2, 3])
    world.launch(1, [12, 13], size=4)
    assert (world.where, world.seen, set(world.state.record.nodes)) == (("starting", 2), [0, 1, 2, 3], {"a", "c"})


def test_a_node_that_leaves_after_its_ranks_have_ended_is_not_lost_and_the_run_finishes() -> None:
    world = on_two_nodes()
    world.end(0, 1, code=0, finished=True)
    del world.nodes["a"]
    world.tick(seconds=5.0)
    assert (world.where, world.seen) == (("running", 1), [0, 1, 2, 3])
    world.end(2, 3, code=0, finished=True)
    assert (world.where, world.kinds) == (("finished", 1), [])


def test_a_lost_node_is_named_also_by_a_leader_that_has_never_heard_of_it() -> None:
    world = on_two_nodes()
    del world.nodes["b"]
    world.state = coordinator.begin(world.spec, world.state.record)
    for _ in range(50):
        for rank in world.nodes["a"].ranks:
            rank.stalled_s += 0.5
        world.tick(seconds=0.5)
    (incident,) = world.incidents
    assert (incident.verdict.kind, incident.verdict.node) == (store.VERDICT_KIND_LOST_NODE, "b")
    assert list(incident.verdict.culprits) == [2, 3]
    assert (world.where, world.seen) == (("running", 1), [0, 1])


def test_an_announced_end_is_no_incident() -> None:
    world = on_two_nodes()
    world.tick(events=(store.Event(node="b", end_announced=store.EndAnnounced(within_s=60.0)),))
    world.end(0, 1, code=1)
    world.end(2, 3, signal=15)
    assert (world.where, world.kinds) == (("finished", 1), [])
