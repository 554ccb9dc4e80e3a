"""The core of runs that another launcher starts."""

from dataclasses import replace
from typing import Any

from holdfast_core import coordinator
from holdfast_core.model import CoreState, Observation, Request, Send, StopRequest, ranks_of
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store

SPEC = store.RunSpec(run="r", nodes=1, mode=store.MODE_OBSERVE, preset=store.PRESET_FAST, instance="i")


class ObservedWorld:
    """A world with one node, whose ranks start and end without the agent."""

    def __init__(self) -> None:
        self.state: CoreState = coordinator.begin(SPEC)
        self.now = 1_000_000.0
        self.node = store.NodeState(run="r", node="n", instance="i", stopped=True)
        self.commands: list[store.NodeCommand] = []

    def launch(self, generation: int, pids: list[int], *, step: int = 0) -> None:
        self.node.generation, self.node.world_size, self.node.stopped = generation, len(pids), False
        del self.node.ranks[:]
        for rank, pid in enumerate(pids):
            progress = common.Progress(step=step, phase=common.PHASE_FORWARD_BACKWARD)
            self.node.ranks.add(
                rank=rank, pid=pid, life=store.LIFE_RUNNING, progress=progress, steps_done=step,
                first_step_ended_unix_s=self.now if step else 0.0,
            )  # fmt: skip

    def end(self, rank: int, **ended: Any) -> None:
        self.node.ranks[rank].life = store.LIFE_EXITED
        self.node.ranks[rank].exit.CopyFrom(store.RankExit(step=5, exited_unix_s=self.now, order=rank, **ended))

    def tick(
        self,
        *requests: Request,
        seconds: float = 0.1,
        events: tuple[store.Event, ...] = (),
        present: bool = True,
    ) -> None:
        self.now += seconds
        node = store.NodeState()
        node.CopyFrom(self.node)
        observation = Observation(nodes={"n": node} if present else {}, events=events, requests=requests)
        self.state, actions = coordinator.step(self.state, self.now, observation)
        self.commands += [action.command for action in actions if isinstance(action, Send)]

    @property
    def where(self) -> tuple[str, int]:
        phase = store.RunPhase.Name(self.state.record.phase).removeprefix("RUN_PHASE_").lower()
        return phase, self.state.record.generation

    @property
    def kinds(self) -> list[int]:
        return [incident.verdict.kind for incident in self.state.incidents.values()]

    def command_kinds(self) -> set[str | None]:
        return {command.WhichOneof("kind") for command in self.commands}


def test_a_world_is_followed_from_its_first_hello_to_its_end_and_its_ranks_get_no_commands() -> None:
    world = ObservedWorld()
    world.tick()
    assert world.where == ("waiting", 0)
    world.launch(1, [10, 11])
    world.tick()
    assert world.where == ("starting", 1)
    assert list(world.state.record.nodes) == ["n"]
    world.launch(1, [10, 11], step=3)
    world.tick()
    assert world.where == ("running", 1)
    for rank in range(2):
        world.end(rank, code=0, finished=True)
    world.tick()
    assert world.where == ("finished", 1)
    assert world.kinds == []
    assert world.command_kinds() == {"finish"}


def test_a_world_is_not_over_while_its_ranks_do_not_report() -> None:
    world = ObservedWorld()
    world.launch(1, [10, 11], step=3)
    world.tick()
    world.tick(present=False)
    assert world.where == ("running", 1)


def test_the_rank_that_died_first_is_named_once_however_many_die_with_it() -> None:
    world = ObservedWorld()
    world.launch(1, [10, 11, 12], step=5)
    world.tick()
    world.end(0)
    world.tick()
    assert world.kinds == []  # an end without a status may be the fault of another rank
    for rank in (1, 2):
        world.end(rank)
    for _ in range(10):
        world.tick()
    assert world.kinds == [store.VERDICT_KIND_DEAD_RANK]
    (incident,) = world.state.incidents.values()
    assert incident.verdict.culprits[0] == 0
    assert incident.state == store.INCIDENT_STATE_NOTED
    assert world.command_kinds() == {"gather_evidence"}


def test_the_next_world_of_a_launcher_is_judged_by_itself() -> None:
    world = ObservedWorld()
    world.launch(1, [10, 11], step=9)
    world.tick()
    world.end(1, signal=9)
    world.tick()
    world.launch(2, [12, 13])
    world.tick()
    assert world.where == ("starting", 2)
    assert world.state.record.newest_step == -1
    assert world.state.record.restarts_total == 1
    assert world.state.reported_once == frozenset()
    world.launch(2, [12, 13], step=9)
    world.tick()
    world.end(1, signal=9)
    world.tick()
    assert world.kinds == [store.VERDICT_KIND_DEAD_RANK] * 2


def test_new_processes_under_an_old_number_are_a_new_world_and_their_steps_count_at_once() -> None:
    world = ObservedWorld()
    world.launch(1, [10, 11], step=9)
    summary = store.StepSummary(step=8, generation=1, ended_unix_s=world.now)
    world.tick(events=(store.Event(node="n", generation=1, step_summary=summary),))
    assert world.state.counted_steps == {"n": 8}
    world.launch(1, [12, 13])
    first = store.StepSummary(step=0, generation=1, ended_unix_s=world.now)
    world.tick(events=(store.Event(node="n", generation=1, step_summary=first),))
    assert world.where == ("starting", 2)
    assert world.state.counted_steps == {"n": 0}


def test_a_new_leader_continues_where_the_last_one_was() -> None:
    world = ObservedWorld()
    world.launch(3, [10, 11], step=9)
    world.tick()
    world.state = replace(coordinator.begin(SPEC, world.state.record), nodes={})
    world.tick()
    assert world.where == ("running", 3)
    world.state = coordinator.begin(SPEC)  # the store has lost everything
    world.tick()
    assert world.where == ("running", 3)


def test_ranks_that_end_as_their_operator_wants_have_stopped_and_are_no_incident() -> None:
    world = ObservedWorld()
    world.launch(1, [10, 11], step=5)
    world.tick()
    world.tick(StopRequest(60.0))
    world.end(0, signal=2)
    world.tick()
    world.tick(seconds=5.0)
    assert (world.where, world.command_kinds()) == (("leaving", 1), set())
    world.end(1, code=1)
    world.tick()
    assert (world.where, world.state.record.outcome) == (("finished", 1), "stopped by an operator")
    assert (world.kinds, world.command_kinds()) == ([], {"finish"})


def test_ranks_that_were_to_end_and_have_not_are_judged_again() -> None:
    world = ObservedWorld()
    world.launch(1, [10, 11], step=5)
    world.tick()
    world.tick(StopRequest(60.0))
    world.tick(seconds=61.0)
    assert world.where == ("running", 1)
    world.end(0, signal=9)
    world.tick(seconds=1.0)
    assert world.kinds == [store.VERDICT_KIND_DEAD_RANK]


def test_what_a_launcher_starts_after_it_was_to_end_is_a_new_world() -> None:
    world = ObservedWorld()
    world.launch(1, [10, 11], step=5)
    world.tick()
    world.tick(StopRequest(60.0))
    world.launch(2, [12, 13])
    world.tick()
    world.end(0, signal=9)
    world.tick(seconds=1.0)
    assert (world.where, world.kinds) == (("starting", 2), [store.VERDICT_KIND_DEAD_RANK])


def test_a_bad_loss_that_would_stop_a_run_is_only_notified_of() -> None:
    world = ObservedWorld()
    spec = store.RunSpec()
    spec.CopyFrom(SPEC)
    spec.loss_policy.non_finite.CopyFrom(store.LossRule(action=store.LOSS_ACTION_STOP, budget=0))
    world.state = replace(world.state, spec=spec)
    world.launch(1, [11], step=3)
    world.tick()
    summary = store.StepSummary(step=3, generation=1, loss_sum=float("nan"), loss_count=1, duration_s=0.3)
    summary.nonfinite.add(rank=0, quantity="loss")
    world.tick(events=(store.Event(node="n", generation=1, step_summary=summary),))
    (incident,) = world.state.incidents.values()
    assert incident.notify
    assert incident.actions[-1].what.startswith("the run is not stopped: another launcher has started its ranks")
    assert world.where == ("running", 1)
    assert "finish" not in world.command_kinds()


class ObservedNodes:
    """A world with two nodes of two ranks each."""

    def __init__(self) -> None:
        self.spec = store.RunSpec()
        self.spec.CopyFrom(SPEC)
        self.spec.nodes = 2
        self.state: CoreState = coordinator.begin(self.spec)
        self.now = 1_000_000.0
        self.nodes: dict[str, store.NodeState] = {}

    def launch(self, name: str, generation: int, pids: list[int], *, step: int = 3, size: int = 4) -> None:
        first = 2 * (name == "b")
        node = store.NodeState(run="r", node=name, instance="i", generation=generation, world_size=size)
        for rank, pid in enumerate(pids, first):
            progress = common.Progress(step=step, phase=common.PHASE_FORWARD_BACKWARD)
            node.ranks.add(rank=rank, pid=pid, life=store.LIFE_RUNNING, progress=progress, steps_done=step,
                           first_step_ended_unix_s=self.now)  # fmt: skip
        self.nodes[name] = node

    def end(self, name: str, **ended: Any) -> None:
        for rank in self.nodes[name].ranks:
            rank.life = store.LIFE_EXITED
            rank.exit.CopyFrom(store.RankExit(step=5, exited_unix_s=self.now, order=rank.rank, **ended))

    def tick(self, *, seconds: float = 0.1, events: tuple[store.Event, ...] = ()) -> None:
        self.now += seconds
        shown = {}
        for name, node in self.nodes.items():
            shown[name] = store.NodeState()
            shown[name].CopyFrom(node)
        self.state, _ = coordinator.step(self.state, self.now, Observation(nodes=shown, events=events))

    @property
    def where(self) -> tuple[str, int, list[int]]:
        phase = store.RunPhase.Name(self.state.record.phase).removeprefix("RUN_PHASE_").lower()
        generation = self.state.record.generation
        return phase, generation, sorted(ranks_of(self.state.nodes, generation))

    @property
    def kinds(self) -> list[int]:
        return [incident.verdict.kind for incident in self.state.incidents.values()]


def test_a_world_over_two_nodes_begins_when_both_report() -> None:
    world = ObservedNodes()
    world.launch("b", 1, [20, 21])
    world.tick()
    assert world.where == ("waiting", 0, [])
    world.launch("a", 1, [10, 11])
    world.tick()
    assert world.where == ("running", 1, [0, 1, 2, 3])
    assert list(world.state.record.nodes) == ["a", "b"]


def test_a_complete_world_on_fewer_nodes_than_named_is_followed_too() -> None:
    world = ObservedNodes()
    world.launch("a", 1, [10, 11], size=2)
    world.tick()
    assert world.where == ("running", 1, [0, 1])


def test_nodes_that_count_a_restart_differently_are_one_world() -> None:
    world = ObservedNodes()
    world.launch("a", 1, [10, 11])
    world.launch("b", 1, [20, 21])
    world.tick()
    world.launch("b", 2, [22, 23], step=0)  # ranks have failed there
    world.tick()
    assert world.where == ("starting", 2, [2, 3])
    world.launch("a", 1, [12, 13], step=0)  # torchrun has restarted these as well, and counts nothing
    world.tick()
    assert world.where == ("starting", 2, [0, 1, 2, 3])
    summary = store.StepSummary(step=0, generation=1, ended_unix_s=world.now)
    world.tick(events=(store.Event(node="a", generation=1, step_summary=summary),))
    assert world.state.counted_steps == {"a": 0}
    world.launch("a", 1, [12, 13], step=2)
    world.launch("b", 2, [22, 23], step=2)
    world.tick()
    assert world.where == ("running", 2, [0, 1, 2, 3])
    assert world.state.record.restarts_total == 1
    assert world.kinds == []


def test_a_node_that_joins_a_complete_world_begins_a_new_one() -> None:
    world = ObservedNodes()
    world.launch("a", 1, [10, 11])
    world.launch("b", 1, [20, 21])
    world.tick()
    lost = world.nodes.pop("b")
    world.nodes["c"] = lost
    lost.node = "c"
    lost.ranks[0].pid, lost.ranks[1].pid = 30, 31
    world.tick()
    assert world.where == ("starting", 2, [2, 3])
    world.launch("a", 1, [12, 13], step=0)
    world.tick()
    assert world.where == ("starting", 2, [0, 1, 2, 3])
    assert set(world.state.record.nodes) == {"a", "c"}


def test_a_node_that_leaves_after_its_ranks_have_ended_is_not_lost_and_the_run_finishes() -> None:
    world = ObservedNodes()
    world.launch("a", 1, [10, 11])
    world.launch("b", 1, [20, 21])
    world.tick()
    world.end("a", code=0, finished=True)
    world.tick()
    del world.nodes["a"]
    world.tick(seconds=5.0)
    assert world.where == ("running", 1, [0, 1, 2, 3])
    world.end("b", code=0, finished=True)
    world.tick()
    assert (world.where[:2], world.kinds) == (("finished", 1), [])


def test_a_lost_node_is_named_also_by_a_leader_that_has_never_heard_of_it() -> None:
    world = ObservedNodes()
    world.launch("a", 1, [10, 11])
    world.launch("b", 1, [20, 21])
    world.tick()
    del world.nodes["b"]
    world.state = coordinator.begin(world.spec, world.state.record)
    for _ in range(50):
        for rank in world.nodes["a"].ranks:
            rank.stalled_s += 0.5
        world.tick(seconds=0.5)
    assert world.kinds == [store.VERDICT_KIND_LOST_NODE]
    (incident,) = world.state.incidents.values()
    assert (incident.verdict.node, list(incident.verdict.culprits)) == ("b", [2, 3])
    assert world.where == ("running", 1, [0, 1])


def test_an_announced_end_is_no_incident() -> None:
    world = ObservedNodes()
    world.launch("a", 1, [10, 11])
    world.launch("b", 1, [20, 21])
    world.tick()
    world.tick(events=(store.Event(node="b", end_announced=store.EndAnnounced(within_s=60.0)),))
    world.end("a", code=1)
    world.end("b", signal=15)
    world.tick()
    assert (world.where[:2], world.kinds) == (("finished", 1), [])
