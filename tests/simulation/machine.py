"""A machine that runs programs until nothing moves, with the semantics of real collectives and messages."""

from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast_proto.member_runs import runs_of
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from tests.simulation.programs import Do, Programs

CALL_S = 0.001
"""Seconds of a call that waits for no other rank."""


@dataclass
class Machine:
    """All ranks of a world. ``stuck``: rank -> the number of calls that it makes before it stops forever."""

    programs: Programs
    stuck: Mapping[int, int]
    eager_sends: bool = True
    """Whether a send completes as soon as it is buffered, and not only when it is received."""
    at: list[int] = field(init=False)
    moved_s: list[float] = field(init=False)
    """Time at which each rank last moved."""
    entered: Counter[tuple[int, int]] = field(default_factory=Counter)
    """(rank, group) -> collectives posted."""
    completed: list[int] = field(init=False)
    """Completed collectives by group."""
    sent: Counter[tuple[int, int]] = field(default_factory=Counter)
    """(from, to) -> messages sent."""
    posted: Counter[tuple[int, int]] = field(default_factory=Counter)
    """(from, to) -> receives posted."""

    def __post_init__(self) -> None:
        ranks = len(self.programs.calls)
        self.at, self.moved_s = [0] * ranks, [0.0] * ranks
        self.completed = [0] * len(self.programs.groups)
        self._newest_s = [0.0] * len(self.programs.groups)
        self._arrivals: Counter[tuple[int, int]] = Counter()
        self._asleep: defaultdict[tuple[str, int, int], list[int]] = defaultdict(list)
        self._ready = deque(range(ranks))

    def run(self) -> "Machine":
        """Let every rank run until it is blocked."""
        while self._ready:
            rank = self._ready.popleft()
            while self._advance(rank):
                pass
        return self

    def _lacks(self, group: int, seq: int) -> bool:
        return seq > self.completed[group]

    def _advance(self, rank: int) -> bool:
        program, at = self.programs.calls[rank], self.at[rank]
        if at == min(len(program), self.stuck.get(rank, len(program))):
            return False
        do, operand = program[at]
        if do == Do.WAIT and self._lacks(operand, self.entered[rank, operand]):
            self._asleep["group", operand, 0].append(rank)
            return False
        if do == Do.WAIT_RECV and self.posted[operand, rank] > self.sent[operand, rank]:
            self._asleep["message", operand, rank].append(rank)
            return False
        if do == Do.ENTER:
            self._enter(rank, operand)
        elif do == Do.SEND:
            self.sent[rank, operand] += 1
            self._wake(("message", rank, operand), self.moved_s[rank])
        elif do == Do.POST_RECV:
            self.posted[operand, rank] += 1
        self.at[rank] = at + 1
        self.moved_s[rank] += CALL_S
        return True

    def _enter(self, rank: int, group: int) -> None:
        self.entered[rank, group] += 1
        seq = self.entered[rank, group]
        self._arrivals[group, seq] += 1
        self._newest_s[group] = max(self._newest_s[group], self.moved_s[rank])
        if self._arrivals[group, seq] == len(self.programs.groups[group].members):
            self.completed[group] = seq
            self._wake(("group", group, 0), self._newest_s[group])

    def _wake(self, what: tuple[str, int, int], at_s: float) -> None:
        for rank in self._asleep.pop(what, ()):
            self.moved_s[rank] = max(self.moved_s[rank], at_s)
            self._ready.append(rank)

    def states(self, stalled_s: float = 10.0) -> dict[int, store.RankState]:
        """Return the states that agents report ``stalled_s`` seconds after the last call of all ranks."""
        end_s = max(self.moved_s) + stalled_s
        ranks = {
            rank: store.RankState(
                rank=rank,
                life=store.LIFE_RUNNING,
                process_state="S",
                thread_state="S",
                device="cpu",
                steps_done=50,
                stalled_s=end_s - self.moved_s[rank],
                silent_s=0.1,
                progress=common.Progress(step=50, phase=common.PHASE_FORWARD_BACKWARD),
            )
            for rank in range(len(self.at))
        }
        for index, group in enumerate(self.programs.groups):
            progress = common.GroupProgress(group=group.name, member_runs=runs_of(group.members))
            for rank in group.members:
                progress.enqueued = self.entered[rank, index]
                progress.completed = min(progress.enqueued, self.completed[index])
                ranks[rank].progress.groups.append(progress)
        for source, target in self.sent.keys() | self.posted.keys():
            self._add_channel(ranks, source, target)
        return ranks

    def _add_channel(self, ranks: Mapping[int, store.RankState], source: int, target: int) -> None:
        sent, posted = self.sent[source, target], self.posted[source, target]
        met = min(sent, posted)
        ranks[source].progress.channels.add(
            group="pp",
            peer=target,
            direction=common.DIRECTION_SEND,
            enqueued=sent,
            completed=sent if self.eager_sends else met,
        )
        ranks[target].progress.channels.add(
            group="pp", peer=source, direction=common.DIRECTION_RECV, enqueued=posted, completed=met
        )
