"""What detectors look at: the state of all ranks in a tick, and the numbers of a step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import sub

from holdfast_core.deadlines import Deadlines
from holdfast_core.diagnosis.devices.causes import CauseKind, Diagnosis, Place
from holdfast_core.diagnosis.devices.counters import dump_of_counters
from holdfast_core.diagnosis.devices.diagnosis import RecorderDumps
from holdfast_core.diagnosis.hosts.different_groups import DifferentGroups, different_groups
from holdfast_core.diagnosis.hosts.host_counters import liveness_of
from holdfast_core.diagnosis.hosts.left_out_calls import LeftOutCalls, left_out_calls
from holdfast_core.diagnosis.hosts.wait_graph import WaitAnalysis, analyse
from holdfast_core.diagnosis.operations import MismatchedCall, mismatched_calls
from holdfast_core.world import World, said_by, world_of
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.recorder_pb2 import RecorderDump


@dataclass(frozen=True, kw_only=True)
class MissingNode:
    """A node of the run whose lease has run out, or whose agent reports and has none of its ranks."""

    since_unix_s: float
    """Unix time at which it was first missed."""
    state: store.NodeState
    """The last state that its agent has reported while it had the ranks."""
    has_none: bool = False
    """Whether its agent itself says that it has none of the ranks, although all ranks have trained."""


@dataclass(frozen=True, kw_only=True)
class View:
    """The state of all ranks in one tick."""

    now: float
    """Unix time by the leader's clock, which never jumps."""
    world_size: int
    ranks: Mapping[int, store.RankState]
    """Ranks of the current generation whose nodes report, by number."""
    node_of: Mapping[int, str]
    """Rank -> its node, also if the node is missing."""
    missing_nodes: Mapping[str, MissingNode]
    deadlines: Deadlines
    first_exit_unix_s: float
    """Unix time of the first abnormal exit that was seen in this generation; 0: none."""
    stacks: Mapping[int, store.StackSummary]
    """Rank -> summary of its stack, taken at the present suspicion."""
    recorders: Mapping[int, RecorderDump] = field(default_factory=dict)
    """Rank -> what the recorder of calls on its device showed then."""
    suspicious: bool = False
    """Whether to look for what may become a hang, at shorter deadlines: see suspicion.py."""
    all_stopped_unix_s: float = 0.0
    """Unix time at which all ranks were last seen stopped together; 0: never."""
    several_stopped_unix_s: float = 0.0
    """Unix time at which more than one rank was last seen stopped; 0: never."""
    pause_patience_s: float = 0.0
    """Seconds that all ranks may be stopped together before that is reported."""
    is_first_start: bool = False
    """Whether no rank has completed a step and none was restarted since the run was started, in the mode in which a run
    may be ended."""

    @cached_property
    def world(self) -> World:
        """The same as ``ranks``."""
        return self.ranks if isinstance(self.ranks, World) else world_of(self.ranks.values())

    @cached_property
    def known_ranks(self) -> Mapping[int, store.RankState]:
        """All ranks. Those of missing nodes are as they last reported, and silent."""
        if not self.missing_nodes:
            return self.ranks
        lost = (rank for node in self.missing_nodes.values() for rank in node.state.ranks)
        return {**{rank.rank: _silent(rank) for rank in lost}, **self.ranks}

    @cached_property
    def late(self) -> Mapping[int, store.RankState]:
        """Ranks that have stalled for longer than their deadline."""
        ratio = SUSPECT_RATIO if self.suspicious else 1.0
        least_s = ratio * self.deadlines.floor_s
        return {rank.rank: rank for rank in self.world.stalled_for(least_s) if self._is_late(rank, ratio)}

    @cached_property
    def all_stopped(self) -> bool:
        """Whether every rank is stopped: a person or a scheduler has paused the whole run."""
        return 0 < self.world.alive == self.world.stopped and len(self.ranks) == self.world_size

    def alone_stopped_s(self, rank: store.RankState) -> float:
        """Return the seconds for which a stopped rank has been the only stopped one."""
        return min(rank.stalled_s, max(0.0, self.now - self.several_stopped_unix_s))

    @cached_property
    def wait_analysis(self) -> WaitAnalysis:
        """Who holds the others up, whether or not it is a hang: the deadlines decide that."""
        in_calls = frozenset(rank for rank, it in self.stacks.items() if it.activity == common.ACTIVITY_COLLECTIVE)
        lost = said_by(rank for node in self.missing_nodes.values() for rank in node.state.ranks)
        seen = ("waits", in_calls, lost, self._stall_order, frozenset(liveness_of(self.known_ranks).items()))
        return self.world.remembered(seen, lambda: analyse(self.known_ranks, in_calls))

    @cached_property
    def _stall_order(self) -> "_StallOrder":
        return _StallOrder([rank.stalled_s for rank in self.known_ranks.values()])

    @cached_property
    def uses_devices(self) -> bool:
        """Whether ranks make their calls on devices, so that the numbers in their reports prove nothing."""
        return any(one.source in _DEVICE_SOURCES for rank in self.known_ranks.values() for one in rank.recorders)

    @cached_property
    def device_diagnosis(self) -> Diagnosis | None:
        """Who holds the others up in calls on devices; None if no recorder was read, and no report has its counters."""
        shows_calls = any(dump.has_calls for dump in self.recorders.values())
        dumps = self.recorders if shows_calls else self._counters or self.recorders  # reports know more groups by name
        if not dumps:
            return None
        places = {number: self._place(number) for number in self.known_ranks}
        dead = [number for number, rank in self.known_ranks.items() if rank.life == store.LIFE_EXITED]
        known = dumps if isinstance(dumps, RecorderDumps) else RecorderDumps(dumps, {})
        return known.diagnosis(places, dead, self.world_size)

    def awaited_s(self, number: int) -> float:
        """Return the seconds for which another rank has stood still that certainly waits for this one in a call.

        0: none does. Counters of devices alone make nothing certain.
        """
        if self.uses_devices:
            waits = self.device_diagnosis.waits if self.device_diagnosis is not None else ()
            waiters = {wait.rank for wait in waits if wait.awaited == number and wait.is_certain}
        else:
            waiters = {waiter for call in self.wait_analysis.missed if call.rank == number for waiter in call.waiters}
        return max((self.known_ranks[waiter].stalled_s for waiter in waiters & self.known_ranks.keys()), default=0.0)

    def is_in_a_call(self, number: int) -> bool:
        """Whether a collective or a message holds a rank, as far as can be seen."""
        rank = self.known_ranks[number]
        pending = [group.enqueued > group.completed for group in rank.progress.groups]
        pending += [channel.enqueued > channel.completed for channel in rank.progress.channels]
        if self.device_diagnosis is not None and number in self.device_diagnosis.ranks:
            pending.append(bool(self.device_diagnosis.ranks[number].pending))
        return any(pending) and number not in self.outside_of_calls

    def waits_off_its_device(self, number: int) -> bool:
        """Whether it is certain that a rank does not wait for its own device, whose kernel may be long and healthy."""
        return not self.uses_devices or self.activity(number) in _OFF_DEVICE

    def holds_a_call_alone(self, number: int) -> bool:
        """Whether the device of a rank has taken part in a call that is over elsewhere, and does not notice the end."""
        causes = self.device_diagnosis.causes if self.device_diagnosis is not None else ()
        return any(number in one.ranks and one.call is not None and one.call.is_held_alone for one in causes)

    @cached_property
    def all_devices_have_arrived(self) -> bool:
        """Whether the devices of all members have reached the call that does not complete: no long kernel delays it."""
        found = self.device_diagnosis
        if found is None:
            return False
        shared = [one.call for one in found.causes if one.kind == CauseKind.GPU_OR_NETWORK and one.call is not None]
        calls = [found.ranks[member].at.get((one.group, one.seq)) for one in shared for member in one.group[1]]
        return bool(calls) and all(call is not None and call.started is True for call in calls)

    @cached_property
    def _counters(self) -> Mapping[int, RecorderDump]:
        """What the reports show of NCCL's recorders, without ranks whose newest report is old."""
        ranks = {number: rank for number, rank in self.ranks.items() if rank.progress.device_groups}
        return {n: dump_of_counters(r.progress.device_groups) for n, r in ranks.items() if not self._is_silent(r)}

    def _place(self, number: int) -> Place:
        return _PLACES.get(self.activity(number), Place.UNKNOWN)

    @cached_property
    def outside_of_calls(self) -> tuple[int, ...]:
        """Ranks that pending calls only seem to hold: they have posted these ahead and are busy elsewhere.

        In the counters, a call that is posted looks like one that is waited for. What the thread does tells them apart.
        """
        held = {rank for call in self.wait_analysis.everyone_arrived for rank in call.held}
        return tuple(rank for rank in sorted(held.union(self.wait_analysis.deadlock)) if self.activity(rank) in OUTSIDE)

    @cached_property
    def left_out(self) -> LeftOutCalls | None:
        """The first group in which ranks have left out calls; None: there is none. It looks at all groups."""
        return self.world.remembered("left out", lambda: left_out_calls(self.ranks))

    @cached_property
    def different_groups(self) -> DifferentGroups | None:
        """The first number under which ranks have made different groups; None: there is none."""
        return self.world.remembered("different groups", lambda: different_groups(self.ranks))

    @cached_property
    def mismatched_call(self) -> MismatchedCall | None:
        """The first call in which ranks do different things, by its names in their recorders; None: there is none."""
        return next(mismatched_calls(self.world.named), None)

    def activity(self, number: int) -> "common.Activity":
        """Return what a rank does, as far as can be seen from outside.

        The order of the tests matters. A stopped or silent rank reports nothing, so that its phase is out of date and
        cannot decide; only then may the phase say that it waits for data. A stack that shows a call of torch is
        newer than the silence, which a loaded machine may explain.
        """
        rank = self.known_ranks[number]
        stack = self.stacks.get(number)
        if rank.life == store.LIFE_EXITED:
            return common.ACTIVITY_UNSPECIFIED
        if rank.process_state in ("T", "t") or rank.blocked_on.activity == common.ACTIVITY_STOPPED:
            return common.ACTIVITY_STOPPED  # a frozen control group does not show in the process state
        named = stack.activity if stack is not None else common.ACTIVITY_UNSPECIFIED
        if self._is_silent(rank) and named != common.ACTIVITY_COLLECTIVE:
            return common.ACTIVITY_GIL_HELD
        if rank.progress.phase == common.PHASE_DATA and named != common.ACTIVITY_COLLECTIVE:
            return common.ACTIVITY_DATA
        return named or _kernel_activity(rank) or _thread_activity(rank)

    def blocked_on(self, number: int) -> common.BlockedOn | None:
        """Return what a rank waits for, as its kernel shows it; None: nothing that shows."""
        stack, rank = self.stacks.get(number), self.known_ranks[number]
        if stack is not None and stack.HasField("blocked_on"):
            return stack.blocked_on
        return rank.blocked_on if rank.HasField("blocked_on") else None

    def may_have_arrived(self, number: int) -> bool:
        """Whether a rank may be in a call that its newest report does not know of yet.

        Its stack shows a call of torch, and its reporter has not run for a while.
        """
        stack = self.stacks.get(number)
        in_a_call = stack is not None and stack.activity == common.ACTIVITY_COLLECTIVE
        return in_a_call and self.known_ranks[number].silent_s > _SILENT_S

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
            # The run has been suspended, and will most likely be continued.
            return rank.stalled_s > self.pause_patience_s
        # After such a pause the processes continue one after another. The time of the pause itself is no stall.
        stalled_s = min(rank.stalled_s, max(0.0, self.now - self.all_stopped_unix_s))
        return stalled_s > ratio * self.deadlines.deadline_s(rank.progress.phase, rank.steps_done)


class _StallOrder:
    """By how many seconds each rank stands still for less long than the first.

    States of nodes are up to a second old. So two orders are equal if no rank differs by more than that leaves open.
    The answer to a question about one is then found for the other: it is no order of the past that slowly drifts away.
    """

    def __init__(self, stalls_s: Sequence[float]) -> None:
        longest_s = max(stalls_s, default=0.0)
        self._behind_s = [longest_s - stalled_s for stalled_s in stalls_s]

    def __hash__(self) -> int:
        return len(self._behind_s)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _StallOrder) or len(self._behind_s) != len(other._behind_s):
            return False
        return max(map(abs, map(sub, self._behind_s, other._behind_s)), default=0.0) < _STALL_TOLERANCE_S


_STALL_TOLERANCE_S = 1.0

SUSPECT_RATIO = 0.7
"""Share of the deadline after which a stalled rank is suspected."""

_SILENT_S, _SILENT_RATIO = 0.7, 3.0
"""A reporter sends five reports a second. One that sends none while others do is not scheduled."""

_SILENT_SHARE = 0.5
"""Least share of the stall that the silence must last: if one thing stopped both, they began together."""

OUTSIDE = (
    common.ACTIVITY_STOPPED,
    common.ACTIVITY_DATA,
    common.ACTIVITY_USER_CODE,
    common.ACTIVITY_GIL_HELD,
    common.ACTIVITY_LOCK,
    common.ACTIVITY_SYSTEM_CALL,
    common.ACTIVITY_FILE_LOCK,
    common.ACTIVITY_PIPE,
    common.ACTIVITY_SOCKET,
    common.ACTIVITY_PROCESS,
    common.ACTIVITY_COMPILER,
    common.ACTIVITY_DISK,
    common.ACTIVITY_SLEEP,
)
"""Activities in which no call holds the rank."""


_OFF_DEVICE = (
    common.ACTIVITY_FILE_LOCK,
    common.ACTIVITY_PIPE,
    common.ACTIVITY_SOCKET,
    common.ACTIVITY_PROCESS,
    common.ACTIVITY_DISK,
    common.ACTIVITY_SLEEP,
)
"""Activities that no wait for a device looks like: that one spins, or waits for a lock or in a call of the driver."""

_PLACES = {
    common.ACTIVITY_DATA: Place.DATA,
    common.ACTIVITY_COLLECTIVE: Place.CALL,
    **dict.fromkeys(
        (
            common.ACTIVITY_STOPPED,
            common.ACTIVITY_USER_CODE,
            common.ACTIVITY_FILE_LOCK,
            common.ACTIVITY_PIPE,
            common.ACTIVITY_PROCESS,
            common.ACTIVITY_COMPILER,
            common.ACTIVITY_DISK,
        ),
        Place.USER_CODE,
    ),
}
"""Activities that no call on a device looks like. A rank that waits for a communicator may hold the interpreter, sleep,
wait for a lock, or read a socket."""

_DEVICE_SOURCES = (
    common.RECORDER_SOURCE_NCCL,
    common.RECORDER_SOURCE_BACKEND,
    common.RECORDER_SOURCE_NONE,
)


def _kernel_activity(rank: store.RankState) -> "common.Activity":
    """Return what the kernel alone shows. A sleep or a lock may be part of a call of torch: only a stack says so."""
    activity = rank.blocked_on.activity
    may_be_a_call = activity in (common.ACTIVITY_SLEEP, common.ACTIVITY_LOCK)
    return common.ACTIVITY_UNSPECIFIED if may_be_a_call else activity


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
    """Deadlines as learned before this step."""
    coordinates: Mapping[int, Mapping[str, int]]
    """Rank -> mesh axis -> index."""

    @property
    def step(self) -> int:
        """The step's number."""
        return self.summary.step

    @property
    def loss(self) -> float | None:
        """Mean loss of the ranks that reported one; None: no rank did."""
        return self.summary.loss_sum / self.summary.loss_count if self.summary.loss_count else None
