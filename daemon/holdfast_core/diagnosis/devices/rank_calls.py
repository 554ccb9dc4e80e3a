"""The calls of one rank: what is pending, how far the rank has come in each group, and what its loop does next."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from holdfast_core.diagnosis.wait_for_graph import GroupKey


class Way(StrEnum):
    """Direction of a transfer."""

    SEND = "send"
    RECV = "recv"


@dataclass(slots=True, eq=False)
class Transfer:
    """One send or receive between two ranks."""

    way: Way
    peer: int
    """Global rank of the other side."""
    number: int
    """How many of this direction with this peer in this group the ring shows up to here, this one included."""
    size_bytes: int = 0
    """0: the dump does not say it."""


@dataclass(slots=True, eq=False)  # there are hundreds of thousands: a frozen one takes three times as long to make
class Call:
    """One call of a rank, or one batch of calls. It is not changed once it is made."""

    rank: int
    group: GroupKey
    order: int
    """Place among all calls of the rank; -1: before all that the ring still holds."""
    seq: int
    """Collective's number in its group; 0 for point-to-point calls, which have none that both sides share."""
    op: str
    """Without the backend; empty if the ring has lost the entry."""
    signature: str
    """Operation, sizes and types where all ranks must agree in them."""
    done: bool
    started: bool | None
    """Whether the device has reached it; None: the recorder does not say."""
    inside: bool
    """The host has not returned from making the call."""
    frame: str
    transfers: tuple[Transfer, ...] = ()
    """Sends and receives of a point-to-point call or batch; empty for a collective."""
    is_p2p: bool = False


@dataclass
class RankCalls:
    """What one rank's recorder shows."""

    rank: int
    pending: list[Call] = field(default_factory=list)
    """Calls that are not done, in the order in which the host made them."""
    arrived: dict[GroupKey, int] = field(default_factory=dict)
    """Group -> number of the newest collective that the host has made. Groups of which it is not known are absent."""
    over: dict[GroupKey, int] = field(default_factory=dict)
    """Group -> number of the newest collective that is certainly over, of those that end nowhere before all members
    have taken part. Groups without one are absent."""
    past: dict[GroupKey, int] = field(default_factory=dict)
    """Group -> number of the newest collective that is over, of any kind, where a dump holds pending calls alone."""
    at: dict[tuple[GroupKey, int], Call] = field(default_factory=dict)
    """Collectives in the ring, done or not, by group and number."""
    transfers: dict[tuple[GroupKey, Way, int], int] = field(default_factory=dict)
    """Group, direction and peer -> number of transfers that the ring shows."""
    counts_exact: bool = True
    """Whether ``transfers`` counts all since the start: the ring has lost none and leaves none out."""
    ready: set[GroupKey] = field(default_factory=set)
    """Groups whose communicator the rank certainly has: the dump names their members, or counts calls of them."""
    kinds: set[str] = field(default_factory=set)
    """Descriptions of these groups: the ranks of a program have groups of the same kinds."""
    history: list[tuple[GroupKey, str]] = field(default_factory=list)
    """Group and signature of all calls in order: a training loop makes the same ones again and again."""
    knows_started: bool = False
    is_partial: bool = False
    """Whether complete calls are left out, so that a batch that is not there may be complete."""
    front_is_certain: bool = True
    """Whether nothing older than the oldest call in ``pending`` can be pending."""
    hides_transfers: bool = False
    """Whether the recorder leaves out pending point-to-point calls: an idle rank may wait in one. Gloo's and that of
    nccl2 do."""
    ends_at_issue: bool = False
    """Whether the recorder ends calls when they are made, not when they complete: then nothing shows who is in one."""
    may_hide: bool = False
    """Whether the ring may have lost a pending call, so that an empty ``pending`` proves nothing."""

    @property
    def front(self) -> Call | None:
        """The oldest pending call."""
        return self.pending[0] if self.pending else None

    @property
    def hides_waits(self) -> bool:
        """Whether a rank without a pending call may wait in one all the same."""
        return self.hides_transfers or self.ends_at_issue

    @property
    def is_idle(self) -> bool:
        """Whether the rank has certainly nothing pending."""
        return not self.pending and not self.may_hide and self.front_is_certain

    @cached_property
    def used_groups(self) -> set[GroupKey]:
        """Groups in which the rank has made calls, or whose communicator it has, as far as it shows."""
        arrived = {group for group, newest in self.arrived.items() if newest}
        return {group for group, _ in self.history} | arrived | self.ready

    def has_completed(self, group: GroupKey, seq: int) -> bool:
        """Return whether a collective that ends nowhere before all members have taken part is certainly over here."""
        return seq <= max(self.over.get(group, -1), self.past.get(group, -1))

    def first_pending_of(self, group: GroupKey) -> Call | None:
        """Return the oldest pending collective of a group."""
        return next((call for call in self.pending if call.group == group and not call.is_p2p), None)


@dataclass(frozen=True)
class GroupUses:
    """What the recorders of all ranks show groups to be used for."""

    with_p2p: frozenset[GroupKey]
    """Groups with point-to-point calls. Their status mixes two counters."""
    with_collectives: frozenset[GroupKey]
    """Groups with collectives in NCCL's own recorder."""
    with_early_ends: frozenset[GroupKey] = frozenset()
    """Groups with collectives that may end on a rank before all members have taken part."""
    only_pending: bool = False
    """Whether the dumps hold pending calls alone, so that one without calls shows that nothing is pending."""
    has_blocking_wait: bool = False
    """Whether a rank has made several calls, and its status shows none: so it is with TORCH_NCCL_BLOCKING_WAIT."""

    def of(self, groups: Iterable[GroupKey]) -> "GroupUses":
        """Return what of this is about some groups."""
        own = frozenset(groups)
        return replace(
            self,
            with_p2p=self.with_p2p & own,
            with_collectives=self.with_collectives & own,
            with_early_ends=self.with_early_ends & own,
        )

    def counts_collectives(self, group: GroupKey) -> bool:
        """Return whether the numbers in a group's status are those of collectives."""
        return group in self.with_collectives and group not in self.with_p2p


_CONTEXT = 3
"""Calls that must be the same as at an earlier place."""


def known_next_calls(history: Sequence[tuple[GroupKey, str]]) -> set[tuple[GroupKey, str]]:
    """Return the calls that the rank made next, by group and signature, when it last was where it is now.

    A rank that waits for a new communicator shows nothing of it in its recorder, so it looks like a rank that does
    nothing. But it does so only when it first uses a group. Where the rank has made the awaited call before, from where
    it is now, no such wait explains why it does not make it. Another call of the same group does not count: the loop
    may well leave that group here for one that it has never used.
    """
    newest = list(history[-_CONTEXT:])
    size = len(newest)
    return {history[i + size] for i in range(len(history) - size) if size and list(history[i : i + size]) == newest}
