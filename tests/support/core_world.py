"""A world for the core: nodes that carry its commands out, without processes, clocks or networks."""

from dataclasses import dataclass, field
from typing import Any

from holdfast_core import coordinator
from holdfast_core.model import Action, CheckpointAnswered, Observation, Request, SaveIncident, Send
from holdfast_proto.checks.whole_rules import new_checker
from holdfast_proto.limits import MOST_RANKS
from holdfast_proto.member_runs import runs_of
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store

TICK_S = 0.1


_COMMANDS = new_checker(MOST_RANKS)


def _parts_of(command: store.NodeCommand) -> dict[str, Any]:
    return {one.name: value for one, value in command.ListFields()}


@dataclass
class World:
    """Some nodes with ranks in one process group, and a leader that watches them."""

    nodes: int = 1
    ranks_per_node: int = 4
    mode: "store.Mode" = store.MODE_ACT
    checkpoints: list[int] = field(default_factory=list)
    now: float = 1_000_000.0
    created_unix_s: float = 0.0
    """Unix time at which the run was created; 0: not known."""
    obeys: bool = True
    """Whether nodes carry commands out."""
    restart_patience: float = 1.0
    spent_s: dict[int, float] = field(default_factory=dict)
    """Phase number -> seconds that the next step will report for it."""
    moving: set[int] = field(default_factory=set)
    """Ranks that make no progress while something moves in their process trees."""

    def __post_init__(self) -> None:
        self.spec = store.RunSpec(
            run="r",
            nodes=self.nodes,
            ranks_per_node=self.ranks_per_node,
            mode=self.mode,
            preset=store.PRESET_FAST,
            restarts_without_progress=2,
            instance="i",
            restart_patience=self.restart_patience,
            created_unix_s=self.created_unix_s,
        )
        self.state = coordinator.begin(self.spec)
        self.node_states = {
            f"node{i}": store.NodeState(
                run="r", node=f"node{i}", ready=True, stopped=True, instance="i", checkpoints=self.checkpoints
            )
            for i in range(self.nodes)
        }
        self.events: list[store.Event] = []
        self.commands: list[tuple[str, store.NodeCommand]] = []
        self.checkpoint_answers: list[CheckpointAnswered] = []

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def phase(self) -> str:
        return store.RunPhase.Name(self.state.record.phase).removeprefix("RUN_PHASE_").lower()

    @property
    def incidents(self) -> list[store.Incident]:
        return [self.state.incidents[name] for name in sorted(self.state.incidents)]

    def rank(self, number: int) -> store.RankState:
        return self.node_states[f"node{number // self.ranks_per_node}"].ranks[number % self.ranks_per_node]

    def tick(self, *requests: Request, seconds: float = TICK_S) -> list[Action]:
        """Let time pass, show the world to the core, and carry out its commands."""
        self.now += seconds
        for node in self.node_states.values():
            for rank in node.ranks:
                if rank.life != store.LIFE_EXITED:
                    # Agents count no stall of a rank that has closed its hooks, and continue to watch its processes.
                    rank.moved = rank.moved or ("cpu" if self._moves(rank) else "")
                    still_s = rank.still_s if rank.moved else max(rank.still_s, rank.stalled_s)
                    rank.still_s = 0.0 if self._moves(rank) else still_s + seconds
                    rank.stalled_s += 0.0 if rank.left_training else seconds
        copies = {}
        for name, node in self.node_states.items():
            copies[name] = store.NodeState()
            copies[name].CopyFrom(node)
        events, self.events = tuple(self.events), []
        observation = Observation(nodes=copies, events=events, requests=requests)
        self.state, actions = coordinator.step(self.state, self.now, observation)
        for action in actions:
            match action:
                case Send(node=name, command=command):
                    _COMMANDS.check(store.NodeCommand(id="1", **_parts_of(command)))  # as an agent does
                    self.commands.append((name, command))
                    if self.obeys and name in self.node_states:
                        self._obey(self.node_states[name], command)
                case CheckpointAnswered():
                    self.checkpoint_answers.append(action)
                case SaveIncident():
                    pass
        return actions

    def _moves(self, rank: store.RankState) -> bool:
        return rank.rank in self.moving or rank.thread_state == "R"

    def stand(self, seconds: float) -> None:
        """Let time pass while no rank moves. A long time has fewer ticks."""
        tick_s = 0.1 if seconds < 20.0 else 0.5
        for _ in range(round(seconds / tick_s)):
            self.tick(seconds=tick_s)

    def until(self, phase: str, ticks: int = 1000) -> None:
        """Run ticks until the run is in a phase."""
        for _ in range(ticks):
            if self.phase == phase:
                return
            self.tick()
        raise AssertionError(f"the run is {self.phase}, not {phase}, after {ticks} ticks")

    def _obey(self, node: store.NodeState, command: store.NodeCommand) -> None:
        match command.WhichOneof("kind"):
            case "start":
                self._start(node, command)
            case "stop":
                for rank in node.ranks:
                    if rank.life != store.LIFE_EXITED:
                        self.end(rank.rank, signal=9)
                node.stopped = True
                if command.generation > node.generation:  # it will not start here
                    node.failed_generation = command.generation
                self.events.clear()
            case "gather_evidence":
                captured = store.EvidenceCaptured(incident=command.gather_evidence.incident, files=["a"])
                self.events.append(store.Event(node=node.node, evidence_captured=captured))
            case "finish":
                pass

    def _start(self, node: store.NodeState, command: store.NodeCommand) -> None:
        held = {rank.rank: list(rank.snapshots) for rank in node.ranks}
        node.generation, node.stopped = command.generation, False
        if command.start.HasField("history") and node.history < command.start.history.number:
            node.history = command.start.history.number
            kept = [step for step in node.checkpoints if step <= command.start.history.parent_step]
            del node.checkpoints[:]
            node.checkpoints.extend(kept)
        del node.ranks[:]
        for number in range(command.start.first_rank, command.start.first_rank + command.start.ranks):
            node.ranks.add(
                rank=number,
                pid=100 + number,
                life=store.LIFE_RUNNING,
                progress=common.Progress(step=command.start.step + 1, phase=common.PHASE_INIT),
                snapshots=[step for step in held.get(number, []) if step == command.start.step],
            )

    def train(
        self,
        steps: int = 1,
        *,
        snapshot: bool = True,
        step_s: float = 0.3,
        loss: float = 2.0,
        tick_s: float = 0.01,
    ) -> None:
        """Let every rank finish some steps, with a tick ``tick_s`` after each."""
        for _ in range(steps):
            for node in self.node_states.values():
                for rank in node.ranks:
                    done = rank.progress.step
                    rank.stalled_s = rank.still_s = 0.0
                    rank.moved = ""
                    rank.steps_done += 1
                    rank.progress.phase = common.PHASE_FORWARD_BACKWARD
                    rank.progress.step = done + 1
                    rank.first_step_ended_unix_s = rank.first_step_ended_unix_s or self.now
                    if snapshot:
                        rank.snapshots[:] = [*rank.snapshots[-1:], done]
                    self._seq(rank, enqueued=rank.progress.step * 2, completed=rank.progress.step * 2)
                summary = store.StepSummary(
                    step=done,
                    generation=node.generation,
                    loss_sum=loss,
                    loss_count=1,
                    duration_s=step_s + sum(self.spent_s.values()),
                    phase_s=self.spent_s,
                )
                self.events.append(store.Event(node=node.node, generation=node.generation, step_summary=summary))
            self.spent_s.clear()
            self.tick(seconds=tick_s)

    def _seq(self, rank: store.RankState, *, enqueued: int, completed: int) -> None:
        del rank.progress.groups[:]
        members = range(self.world_size)
        rank.progress.groups.add(group="0", member_runs=runs_of(members), enqueued=enqueued, completed=completed)

    def hang(self, culprit: int) -> None:
        """Let all ranks but one enter a collective."""
        for number in range(self.world_size):
            if number != culprit:
                group = self.rank(number).progress.groups[0]
                self._seq(self.rank(number), enqueued=group.completed + 1, completed=group.completed)

    def end(self, number: int, **how: Any) -> None:
        """End one rank. If it has finished, it is at the end of its loop unless ``how`` says another."""
        rank = self.rank(number)
        if how.get("finished"):
            how = {"steps_until": rank.progress.step + 1, **how}
        rank.life = store.LIFE_EXITED
        ended = store.RankExit(
            step=rank.progress.step, phase=rank.progress.phase, exited_unix_s=self.now, order=self._order(), **how
        )
        rank.exit.CopyFrom(ended)
        self.events.append(store.Event(node="node0", rank_exited=store.RankExited(rank=number, exit=ended)))

    def _order(self) -> int:
        return sum(rank.life == store.LIFE_EXITED for node in self.node_states.values() for rank in node.ranks)

    def lose_leader(self) -> None:
        """Continue as a standby that takes over, from the record and the incidents alone."""
        self.state = coordinator.begin(self.spec, self.state.record, dict(self.state.incidents))

    def empty_store(self) -> None:
        """Continue as a leader that finds an emptied store: without record and incidents."""
        self.state = coordinator.begin(self.spec)

    def sent(self, kind: str) -> list[store.NodeCommand]:
        return [command for _, command in self.commands if command.WhichOneof("kind") == kind]
