"""What detectors are shown."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from holdfast_daemon.core.deadlines import Deadlines
from holdfast_daemon.core.waits.named_calls import MismatchedCall, mismatched_calls
from holdfast_daemon.core.waits.wait_graph import WaitAnalysis, analyse
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store


@dataclass(frozen=True, kw_only=True)
class MissingNode:
    """A node of the run whose lease has run out."""

    since_unix_s: float
    """When it was missed first."""
    state: store.NodeState
    """The last that was heard of it."""


@dataclass(frozen=True, kw_only=True)
class View:
    """The state of all ranks in one tick."""

    now: float
    """Unix time by the leader's clock, which never jumps."""
    world_size: int
    ranks: Mapping[int, store.RankState]
    """All ranks of the current generation whose nodes are heard of."""
    node_of: Mapping[int, str]
    """Rank -> its node, also of a lost one."""
    missing_nodes: Mapping[str, MissingNode]
    deadlines: Deadlines
    first_exit_unix_s: float
    """When the first abnormal exit of this generation was seen; 0: none."""
    stacks: Mapping[int, store.StackSummary]
    """What stacks taken at the present suspicion say, by rank."""
    suspicious: bool = False
    """Whether to look for what may become a hang, before any deadline has passed: see suspicion.py."""
    all_stopped_unix_s: float = 0.0
    """When all ranks were last seen stopped together; 0: never."""
    several_stopped_unix_s: float = 0.0
    """When more than one rank was last seen stopped; 0: never."""
    pause_patience_s: float = 0.0
    """How long all ranks may be stopped together before anything is said about it."""

    @cached_property
    def known_ranks(self) -> Mapping[int, store.RankState]:
        """All ranks, those of lost nodes as they were last heard of, and silent."""
        lost = (rank for node in self.missing_nodes.values() for rank in node.state.ranks)
        return {**{rank.rank: _silent(rank) for rank in lost}, **self.ranks}

    @cached_property
    def late(self) -> Mapping[int, store.RankState]:
        """Ranks that have stalled for longer than they may."""
        ratio = SUSPECT_RATIO if self.suspicious else 1.0
        least_s = ratio * self.deadlines.floor_s
        return {
            number: rank
            for number, rank in self.ranks.items()
            if rank.stalled_s > least_s and self._is_late(rank, ratio)
        }

    @cached_property
    def all_stopped(self) -> bool:
        """Whether every rank is stopped: somebody has paused the whole run."""
        alive = [rank for rank in self.ranks.values() if rank.life != store.LIFE_EXITED]
        return bool(alive) and len(self.ranks) == self.world_size and all(map(is_stopped, alive))

    def alone_stopped_s(self, rank: store.RankState) -> float:
        """Return for how long a stopped rank has been the only one that is."""
        return min(rank.stalled_s, max(0.0, self.now - self.several_stopped_unix_s))

    @cached_property
    def wait_analysis(self) -> WaitAnalysis:
        """Who holds everybody up, whether or not it is a hang."""
        in_calls = {rank for rank, stack in self.stacks.items() if stack.activity == common.ACTIVITY_COLLECTIVE}
        return analyse(self.known_ranks, in_calls)

    @cached_property
    def outside_of_calls(self) -> tuple[int, ...]:
        """Ranks that pending calls seem to hold and do not: they have posted these ahead and are busy elsewhere.

        A call that is posted and not waited for looks like one that is: what the thread does tells them apart.
        """
        held = {rank for call in self.wait_analysis.everyone_arrived for rank in call.held}
        return tuple(rank for rank in sorted(held.union(self.wait_analysis.knot)) if self.activity(rank) in OUTSIDE)

    @cached_property
    def mismatched_call(self) -> MismatchedCall | None:
        """The first call in which ranks do different things, by the names that their recorders give it."""
        return next(mismatched_calls(self.ranks), None)

    def activity(self, number: int) -> "common.Activity":
        """Return what a rank is doing, as far as can be seen from outside.

        What a rank that holds its interpreter lock has told is old: its phase says no more what it does.
        """
        rank = self.known_ranks[number]
        stack = self.stacks.get(number)
        if rank.life == store.LIFE_EXITED:
            return common.ACTIVITY_UNSPECIFIED
        if rank.process_state in ("T", "t"):
            return common.ACTIVITY_STOPPED
        if self._is_silent(rank):
            return common.ACTIVITY_GIL_HELD
        named = stack.activity if stack is not None else common.ACTIVITY_UNSPECIFIED
        if rank.progress.phase == common.PHASE_DATA and named != common.ACTIVITY_COLLECTIVE:
            return common.ACTIVITY_DATA
        return named or _thread_activity(rank)

    def _is_silent(self, rank: store.RankState) -> bool:
        least_s = max(_SILENT_S, _SILENT_RATIO * self._usual_silence_s, _SILENT_SHARE * rank.stalled_s)
        return rank.silent_s > least_s

    @cached_property
    def _usual_silence_s(self) -> float:
        silences = sorted(rank.silent_s for rank in self.ranks.values())
        return silences[len(silences) // 2] if silences else 0.0

    def _is_late(self, rank: store.RankState, ratio: float) -> bool:
        if rank.life == store.LIFE_EXITED:
            return False
        if self.all_stopped:
            # Somebody has suspended the run, and will most likely let it continue.
            return rank.stalled_s > self.pause_patience_s
        # After such a pause processes continue one after the other: what they did not do in it is no stall.
        stalled_s = min(rank.stalled_s, max(0.0, self.now - self.all_stopped_unix_s))
        return stalled_s > ratio * self.deadlines.deadline_s(rank.progress.phase, rank.steps_done)


SUSPECT_RATIO = 0.7
"""Of the deadline at which a stalled rank is judged."""

_SILENT_S, _SILENT_RATIO = 0.7, 3.0
"""A rank's reporter speaks five times a second; one that does not while others do cannot run."""

_SILENT_SHARE = 0.5
"""Of its stall. What keeps the reporter from running is why the rank stands still, so both began together."""

OUTSIDE = (
    common.ACTIVITY_STOPPED,
    common.ACTIVITY_DATA,
    common.ACTIVITY_USER_CODE,
    common.ACTIVITY_GIL_HELD,
    common.ACTIVITY_LOCK,
    common.ACTIVITY_SYSTEM_CALL,
)
"""Activities in which no call holds the rank."""


def is_stopped(rank: store.RankState) -> bool:
    """Whether a signal has stopped the process; a debugger's stop is another state."""
    return rank.life != store.LIFE_EXITED and rank.process_state == "T"


def _thread_activity(rank: store.RankState) -> "common.Activity":
    if rank.thread_state == "D":
        return common.ACTIVITY_SYSTEM_CALL
    if rank.thread_state == "R" and rank.device.startswith("cpu"):  # on a GPU, waiting spins
        return common.ACTIVITY_USER_CODE
    return common.ACTIVITY_UNSPECIFIED


def _silent(rank: store.RankState) -> store.RankState:
    known = store.RankState()
    known.CopyFrom(rank)
    known.silent_s = float("inf")
    return known


@dataclass(frozen=True)
class StepView:
    """The numbers of one finished step of the whole run."""

    now: float
    summary: store.StepSummary
    deadlines: Deadlines
    """As of before this step."""
    coordinates: Mapping[int, Mapping[str, int]]
    """Rank -> mesh axis -> index."""

    @property
    def step(self) -> int:
        """The step's number."""
        return self.summary.step

    @property
    def loss(self) -> float | None:
        """The mean over the ranks that reported one."""
        return self.summary.loss_sum / self.summary.loss_count if self.summary.loss_count else None
