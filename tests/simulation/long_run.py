"""A run of 10,000 ranks whose days pass in seconds: what is quiet costs nothing, and each trouble happens as it would.

Nodes show a new state only where something has changed. Of the steps between two troubles, one node reports each, and
the others report the last: their earlier reports count as lost.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from holdfast_core.model import (
    AcknowledgeRequest,
    Action,
    CheckpointRequest,
    FaultRequest,
    Observation,
    ProfileRequest,
    Request,
    Send,
    StacksRequest,
)
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.fault_pb2 import Fault
from tests.support.core_world import World

DAY_S = 86_400.0
QUIET_S = 43_200.0
"""Time between two looks while all trains."""
NAMES = 30
"""Numbers that the script logs each day under new names."""
_KEPT = 3
"""Checkpoints that nodes see."""


@dataclass
class LongRun(World):
    """Its nodes are machines, which get new names when they are replaced. ``decide`` stands for the leader."""

    nodes: int = 1250
    ranks_per_node: int = 8
    decide: Callable[[float, Observation], list[Action]] | None = None
    machines: int = 0
    """Machines that were there so far."""
    shown: dict[str, store.NodeState] = field(default_factory=dict)
    """State of each node as it is in the store."""
    changed: set[str] = field(default_factory=set)
    """Nodes with another state than the one that is shown."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.spec.injection_allowed = True
        self.spec.checkpoint_every = 50
        self.machines = self.nodes
        self.changed = set(self.node_states)
        self.names = list(self.node_states)

    def rank(self, number: int) -> store.RankState:
        return self.node_states[self.names[number // self.ranks_per_node]].ranks[number % self.ranks_per_node]

    def tick(self, *requests: Request, seconds: float = 0.2) -> list[Action]:
        assert self.decide is not None
        self.now += seconds
        for name in self.changed & self.node_states.keys():
            self.shown[name] = copied(self.node_states[name])
            self.shown[name].reported_unix_s = self.now
        self.changed.clear()
        shown = {name: state for name, state in self.shown.items() if name in self.node_states}
        self.shown = dict(shown)
        events, self.events = tuple(self.events), []
        actions = self.decide(self.now, Observation(nodes=shown, events=events, requests=requests))
        for action in actions:
            if isinstance(action, Send) and action.node in self.node_states:
                self.changed.add(action.node)
                self._obey(self.node_states[action.node], action.command)
        return actions

    def _obey(self, node: store.NodeState, command: store.NodeCommand) -> None:
        match command.WhichOneof("kind"):
            case "stop":
                for rank in node.ranks:
                    rank.life = store.LIFE_EXITED
                    rank.exit.CopyFrom(rank.exit if rank.HasField("exit") else self._killed(rank))
                node.stopped = True
            case "take_stacks":
                wanted = command.take_stacks
                taken = [store.RankStacks(rank=rank, problem="no stack") for rank in wanted.ranks]
                self.send(node.node, stacks_taken=store.StacksTaken(request=wanted.request, ranks=taken))
            case "take_profile":
                request = command.take_profile.request
                self.send(node.node, profile_taken=store.ProfileTaken(request=request, rank=0, files=["a"]))
            case "inject_fault":
                fault = command.inject_fault
                self.send(node.node, fault_injected=store.FaultInjected(fault=fault, step=self.step))
            case _:
                super()._obey(node, command)

    def _killed(self, rank: store.RankState) -> store.RankExit:
        return store.RankExit(step=rank.progress.step, signal=9, exited_unix_s=self.now, order=2)

    def send(self, node: str, **event: object) -> None:
        """Have a node send an event."""
        generation = self.state.record.generation
        self.events.append(store.Event(node=node, generation=generation, unix_s=self.now, **event))  # type: ignore[arg-type]

    @property
    def step(self) -> int:
        """Step that the ranks are in."""
        return self.rank(0).progress.step

    def spend_quietly(self, seconds: float) -> None:
        """Let time pass while all ranks train."""
        for _ in range(round(seconds / QUIET_S)):
            self.tick(seconds=QUIET_S)

    def train_on(self, steps: int) -> None:
        """Let all ranks finish steps of the present generation."""
        first = self.step
        for node in self.node_states.values():
            for rank in node.ranks:
                rank.life, rank.steps_done = store.LIFE_RUNNING, rank.steps_done + steps
                rank.progress.step, rank.progress.phase = first + steps, common.PHASE_FORWARD_BACKWARD
                rank.stalled_s = 0.0
                rank.first_step_ended_unix_s = rank.first_step_ended_unix_s or self.now
                rank.memory.allocated_bytes = 2**34
        self.changed |= self.node_states.keys()
        self._summarize(self.names[0], range(first, first + steps))
        for name in self.names[1:]:
            self._summarize(name, [first + steps - 1])
        self.tick(seconds=0.3 * steps)

    def _summarize(self, node: str, steps: Iterable[int]) -> None:
        for step in steps:
            noise = (step * 37 % 100) / 1000.0
            summary = store.StepSummary(
                step=step,
                generation=self.state.record.generation,
                loss_sum=(90.0 if step % 101 == 100 else 2.0) + noise,
                loss_count=1,
                grad_norm=1.0 + noise,
                duration_s=0.3 + noise / 10.0,
                tokens=4096,
                phase_s={common.PHASE_FORWARD_BACKWARD: 0.2, common.PHASE_DATA: 0.01},
            )
            summary.samples.add(dp=0, rank=0, fingerprint=step.to_bytes(8, "big"))
            self.send(node, step_summary=summary)

    def commit(self) -> None:
        """Let a checkpoint of the last step be committed, as the next tick shows."""
        step = self.step - 1
        for node in self.node_states.values():
            node.checkpoints[:] = [*node.checkpoints, step][-_KEPT:]
        self.changed |= self.node_states.keys()
        self.send(self.names[0], checkpoint_committed=store.CheckpointCommitted(step=step))

    def kill_rank(self, number: int) -> None:
        """Let a rank die, wait for the next generation, and let it train."""
        rank = self.rank(number)
        rank.life = store.LIFE_EXITED
        rank.exit.CopyFrom(self._killed(rank))
        name = self.names[number // self.ranks_per_node]
        self.changed.add(name)
        self.send(name, rank_exited=store.RankExited(rank=number, exit=rank.exit))
        self._recover()

    def lose_node(self, number: int) -> None:
        """Let a machine vanish, and another one take its place."""
        del self.node_states[self.names[number]]
        name = self.names[number] = f"node{self.machines}"
        self.machines += 1
        checkpoints = self.node_states[self.names[0]].checkpoints
        self.node_states[name] = store.NodeState(
            run="r", node=name, ready=True, stopped=True, instance="i", checkpoints=checkpoints
        )
        self._stand_still()
        self._recover()

    def hang(self, culprit: int) -> None:
        """Let all ranks stand still for one of them, until the next generation trains."""
        self._stand_still()
        self.rank(culprit).process_state = "T"
        self._recover()

    def _stand_still(self) -> None:
        for node in self.node_states.values():
            for rank in node.ranks:
                rank.stalled_s = rank.still_s = 100.0
                rank.thread_state = rank.process_state = "S"
        self.changed |= self.node_states.keys()

    def _recover(self) -> None:
        """Wait for the next generation, and let it train."""
        generation = self.state.record.generation
        for _ in range(200):
            if self.state.record.generation > generation and self.phase == "starting":
                break
            self.tick(seconds=5.0)
        assert (self.phase, self.state.record.generation) == ("starting", generation + 1), self.phase
        self.tick()
        self.train_on(2)
        assert self.phase == "running"


def copied(node: store.NodeState) -> store.NodeState:
    """Return a copy of a state, as the store has it."""
    copy = store.NodeState()
    copy.CopyFrom(node)
    return copy


TROUBLES = 30
"""Checkpoints of a day that cannot be written, and others that cannot be read: each is an incident."""


def live_through_day(run: LongRun, day: int, *, steps: int, harm: bool) -> None:
    """Let a day pass with all that may happen in it. ``harm``: the run must start again."""
    run.spend_quietly(DAY_S / 2)
    run.commit()
    for number in range(TROUBLES):
        _trouble_checkpoints(run, day, number)
    words = session.WitnessWords(witness="RAS", words=[session.RankWords(ranks=[3], text=f"day {day}")])
    numbers = [common.LoggedNumber(name=f"day{day}/{name}", value=1.0, step=run.step) for name in range(NAMES)]
    run.send(run.names[2], witness_words=words)
    run.send(run.names[0], numbers_logged=store.NumbersLogged(numbers=numbers))
    stacks = StacksRequest(id=f"stacks-{day}", ranks=(1, 9, 17))
    profile = ProfileRequest(id=f"profile-{day}", rank=0, steps=2, patience_s=30.0)
    faults = (FaultRequest(Fault(rank=number, kind="slow", step=-1)) for number in range(6))
    run.tick(CheckpointRequest(), stacks, profile, *faults)
    if harm:
        (run.kill_rank, run.lose_node, run.hang)[day % 3](day * 11)
    run.train_on(steps)
    newest = max(run.state.incidents.values(), key=lambda incident: incident.detected_unix_s)
    run.tick(AcknowledgeRequest(newest.id))
    run.spend_quietly(DAY_S / 2)


def _trouble_checkpoints(run: LongRun, day: int, number: int) -> None:
    node, step = run.names[number], 10**6 + day * TROUBLES + number
    run.send(node, checkpoint_failed=store.CheckpointFailed(step=run.step, reason="no space left on /data"))
    run.send(node, checkpoint_unreadable=store.CheckpointUnreadable(step=step, reason="digest differs"))
    for committed in (run.step + 1, run.step + 2):  # after two in a row, the next failure is another incident
        run.send(node, checkpoint_committed=store.CheckpointCommitted(step=committed))
