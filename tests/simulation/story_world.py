"""The world of a scenario: nodes that obey, and everything that can happen to them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holdfast_core import coordinator
from holdfast_core.model import Action, Request
from holdfast_proto.member_runs import runs_of
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from tests.simulation import story_log
from tests.support.core_world import TICK_S, World

STEP_S = 0.3
LONG_S, LONG_TICK_S = 60.0, 0.5
"""Long waits have fewer ticks: what takes minutes is not judged by tenths of a second."""


def tick_s(seconds: float) -> float:
    """Return the seconds between the ticks of a wait."""
    return TICK_S if seconds < LONG_S else LONG_TICK_S


@dataclass
class StoryWorld(World):
    """A world whose ranks may fall silent, and whose agents take stacks on command."""

    preset: "store.Preset" = store.PRESET_FAST
    stacks: dict[int, store.StackSummary] = field(default_factory=dict)
    """Content of each rank's stack."""
    silent: set[int] = field(default_factory=set)
    """Ranks whose reporters do not run."""
    log: list[str] = field(default_factory=list)
    """Lines that the runner has not taken yet."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.spec.preset = self.preset
        self.state = coordinator.begin(self.spec)
        self.began = self.now

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run began."""
        return self.now - self.began

    def tick(self, *requests: Request, seconds: float = TICK_S) -> list[Action]:
        for node in self.node_states.values():
            for rank in node.ranks:
                rank.silent_s = rank.silent_s + seconds if rank.rank in self.silent else 0.1
        before = self.state
        actions = super().tick(*requests, seconds=seconds)
        self.log += (f"{self.elapsed_s:6.1f} {line}" for line in story_log.lines(before, self.state, actions))
        return actions

    def take_log(self) -> list[str]:
        """Return the lines since the last call."""
        log, self.log = self.log, []
        return log

    def train_again(self, steps: int, losses: Sequence[float] = ()) -> None:
        """Let all ranks train some steps. Whatever held them up is over."""
        for step in range(max(steps, len(losses))):
            self.silent.clear()
            self.moving.clear()
            for node in self.node_states.values():
                for rank in node.ranks:
                    rank.process_state, rank.thread_state = "S", "S"
                    rank.traced, rank.workers = False, 0
                    del rank.progress.channels[:], rank.pending[:]
            loss = losses[step] if losses else 2.0
            self.train(tick_s=STEP_S, step_s=STEP_S, loss=loss)

    def spend(self, phase: "common.Phase", seconds: float) -> None:
        """Let all ranks do something other than training for a while. The time counts as part of the next step."""
        for number in range(self.world_size):
            self.rank(number).progress.phase = phase
        for _ in range(round(seconds / tick_s(seconds))):
            self.tick(seconds=tick_s(seconds))
        self.spent_s[phase] = seconds

    def set_group(self, name: str, enqueued: Mapping[int, int], completed: int) -> None:
        """Set the progress of a group's members in it."""
        for number, seq in enqueued.items():
            groups = self.rank(number).progress.groups
            kept = [group for group in groups if group.group != name]
            del groups[:]
            groups.extend(kept)
            groups.add(group=name, member_runs=runs_of(sorted(enqueued)), enqueued=seq, completed=min(seq, completed))

    def set_channel(self, source: int, target: int, *, sent: int, posted: int, received: int) -> None:
        """Set the numbers of messages sent, receives posted and messages received in a channel."""
        self.rank(source).progress.channels.add(
            group="pp", peer=target, direction=common.DIRECTION_SEND, enqueued=sent, completed=sent
        )
        self.rank(target).progress.channels.add(
            group="pp", peer=source, direction=common.DIRECTION_RECV, enqueued=posted, completed=received
        )

    def _obey(self, node: store.NodeState, command: store.NodeCommand) -> None:
        if command.WhichOneof("kind") == "gather_evidence":
            self._gather(node, command.gather_evidence)
        else:
            super()._obey(node, command)

    def _gather(self, node: store.NodeState, message: store.GatherEvidence) -> None:
        here = {rank.rank for rank in node.ranks}
        stacks = [self.stacks[rank] for rank in message.stack_ranks if rank in here and rank in self.stacks]
        captured = store.EvidenceCaptured(incident=message.incident, suspicion=message.suspicion, stacks=stacks)
        if message.incident:
            captured.files.append(f"{node.node}/stacks.txt")
        self.events.append(store.Event(node=node.node, generation=node.generation, evidence_captured=captured))
