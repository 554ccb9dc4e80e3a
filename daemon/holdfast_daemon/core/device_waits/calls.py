"""The calls of one rank, from its recorder's entries: what is pending, and how far the rank has come in each group.

An entry is not always a call of its own. A batch of calls leaves one entry for each member, whose state torch never
updates, and a closing entry that alone is followed (ProcessGroupNCCL::endCoalescing). Here a batch is one call.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from holdfast_proto.v1 import recorder_pb2 as recorder

GroupKey = tuple[str, tuple[int, ...]]
"""Name and members. Two processes may use one name for different groups; ids differ from rank to rank."""

_CLOSING = re.compile(r"(^|:)(coalesced|\w+_coalesced)$")
_ONE_CALL = re.compile(r"(allreduce|into_tensor)_coalesced$")
"""The fast paths of coalesced calls, which make one ordinary entry."""
_TRANSFER = re.compile(r"(send|recv) (\d+)(->|<-)(\d+)$")


class Way(StrEnum):
    """Direction of a transfer."""

    SEND = "send"
    RECV = "recv"


@dataclass(frozen=True)
class Transfer:
    """One send or receive between two ranks."""

    way: Way
    peer: int
    """Global rank of the other side."""
    number: int
    """How many of this direction with this peer in this group the ring shows up to here, this one included."""


@dataclass(frozen=True)
class Call:
    """One call of a rank, or one batch of calls."""

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
    created_ns: int
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
    at: dict[tuple[GroupKey, int], Call] = field(default_factory=dict)
    """Collectives in the ring, done or not, by group and number."""
    transfers: dict[tuple[GroupKey, Way, int], int] = field(default_factory=dict)
    """Group, direction and peer -> number of transfers that the ring shows."""
    counts_exact: bool = True
    """Whether ``transfers`` counts all since the start: the ring has lost none and leaves none out."""
    history: list[str] = field(default_factory=list)
    """All calls in order, as text: a training loop makes the same ones again and again."""
    newest_ns: int = 0
    knows_started: bool = False
    may_hide: bool = False
    """Whether the ring may have lost a pending call, so that an empty ``pending`` proves nothing."""

    @property
    def front(self) -> Call | None:
        """The oldest pending call."""
        return self.pending[0] if self.pending else None

    def first_pending_of(self, group: GroupKey) -> Call | None:
        """Return the oldest pending collective of a group."""
        return next((call for call in self.pending if call.group == group and not call.is_p2p), None)


def calls_of(rank: int, dump: recorder.RecorderDump, keys: list[GroupKey], with_p2p: frozenset[GroupKey]) -> RankCalls:
    """Return what a rank's dump shows.

    Args:
        rank: global rank.
        dump: the dump.
        keys: for each group of the dump, its key.
        with_p2p: groups in which any rank's recorder shows point-to-point calls. Their status mixes two counters.
    """
    return _Reading(rank, dump, keys, with_p2p).result()


class _Reading:
    def __init__(
        self, rank: int, dump: recorder.RecorderDump, keys: list[GroupKey], with_p2p: frozenset[GroupKey]
    ) -> None:
        self._dump = dump
        self._keys = keys
        self._with_p2p = with_p2p
        self._calls = RankCalls(rank, counts_exact=not dump.has_wrapped and not dump.is_partial)
        self._newest: dict[int, recorder.RecordedCall] = {}
        self._before: dict[int, recorder.RecordedCall] = {}
        self._members: dict[int, list[recorder.RecordedCall]] = {}
        """Entries that stand for a call -> the members of its batch, by order; no members: no batch."""
        self._first_done: dict[int, bool] = {}
        """Group -> whether the oldest call in the ring is done."""

    def result(self) -> RankCalls:
        self._members = self._find_batches()
        entries = self._dump.calls
        timed = any(entry.state == recorder.CALL_STATE_STARTED for entry in entries)
        self._calls.knows_started = timed or any(group.last_started >= 0 for group in self._groups_with_status())
        followed = [entry for entry in entries if entry.order in self._members]
        for entry in followed:
            self._before[entry.group] = self._newest.get(entry.group, entry)
            self._newest[entry.group] = entry
        for entry in entries:
            self._note_position(entry)
        for entry in followed:
            self._add(entry, self._members[entry.order])
        self._use_status()
        self._calls.pending.sort(key=lambda call: call.order)
        return self._calls

    def _groups_with_status(self) -> Iterator[recorder.RecordedGroup]:
        return (group for group in self._dump.groups if group.has_status)

    def _find_batches(self) -> dict[int, list[recorder.RecordedCall]]:
        found: dict[int, list[recorder.RecordedCall]] = {}
        open_: dict[tuple[int, bool, int, int], list[recorder.RecordedCall]] = {}
        for entry in self._dump.calls:
            found[entry.order] = []
            # The members of a batch of transfers share its number among these. Those of a batch of collectives share
            # the collective's number, and no batch of transfers comes between them.
            key = (entry.group, entry.p2p, 0 if entry.p2p else entry.seq, entry.p2p_seq)
            if _closes(entry):
                # A batch of transfers closes with an entry that is not marked as one, under the number of the
                # collective before it.
                sent = open_.pop((entry.group, True, 0, entry.p2p_seq), None)
                members = sent if sent is not None else open_.pop(key, [])
                for member in members:
                    found.pop(member.order, None)
                found[entry.order] = members
            elif not entry.retired and entry.state != recorder.CALL_STATE_COMPLETED:  # no member gets that far
                open_.setdefault(key, []).append(entry)
        if self._dump.is_partial:
            # Closing entries that are complete are left out, and their members, which never complete, are not.
            for (_, is_p2p, _, _), members in open_.items():
                if is_p2p or len(members) > 1:
                    for member in members:
                        found.pop(member.order, None)
        return found

    def _is_transfer(self, entry: recorder.RecordedCall) -> bool:
        return entry.p2p or any(member.p2p for member in self._members[entry.order])

    def _own_number(self, entry: recorder.RecordedCall) -> int:
        """Return the number with which a call appears in its group's status."""
        return entry.p2p_seq if self._is_transfer(entry) else entry.seq

    def _note_position(self, entry: recorder.RecordedCall) -> None:
        key = self._keys[entry.group]
        self._calls.arrived[key] = max(self._calls.arrived.get(key, 0), entry.seq)
        self._calls.newest_ns = max(self._calls.newest_ns, entry.created_ns)

    def _add(self, entry: recorder.RecordedCall, members: list[recorder.RecordedCall]) -> None:
        key = self._keys[entry.group]
        is_p2p = self._is_transfer(entry)
        if not is_p2p and not members and _is_bare_closing(entry) and self._is_repeated(entry, key):
            return  # the closing entry of a batch of transfers whose members have left the ring: nothing to pair
        inside = self._is_inside(entry)
        done = entry.retired or (entry.state == recorder.CALL_STATE_COMPLETED and not inside)
        self._first_done.setdefault(entry.group, done)
        transfers = tuple(self._transfers(key, members or [entry])) if is_p2p else ()
        seq = 0 if is_p2p else entry.seq
        call = Call(
            rank=self._calls.rank,
            group=key,
            order=entry.order,
            seq=seq,
            op=_operation(entry.op) if not is_p2p or not members else "batch of transfers",
            signature=_signature(members or [entry], entry),
            done=done,
            started=self._has_started(entry),
            inside=inside,
            created_ns=entry.created_ns,
            frame=entry.frame or next((member.frame for member in members if member.frame), ""),
            transfers=transfers,
            is_p2p=is_p2p,
        )
        self._calls.history.append(f"{key[0]} {call.signature}")
        if not is_p2p:
            self._calls.at[key, seq] = call
        if not done:
            self._calls.pending.append(call)

    def _is_repeated(self, entry: recorder.RecordedCall, key: GroupKey) -> bool:
        return key in self._with_p2p or (key, entry.seq) in self._calls.at

    def _has_started(self, entry: recorder.RecordedCall) -> bool | None:
        if not self._calls.knows_started:
            return None
        return entry.retired or entry.state in (recorder.CALL_STATE_STARTED, recorder.CALL_STATE_COMPLETED)

    def _is_inside(self, entry: recorder.RecordedCall) -> bool:
        """Return whether the host is still in the function that makes this call.

        The entry is written before NCCL is called, and ``last_enqueued`` afterwards (ProcessGroupNCCL::initWork and
        ::workEnqueue). In between, the state may say "completed": it then reads the event of an earlier call.
        """
        group = self._dump.groups[entry.group]
        if entry.retired or not group.has_status or self._newest[entry.group] is not entry:
            return False
        before = self._before[entry.group]
        if before is entry:
            is_only = not self._dump.has_wrapped and not self._dump.is_partial
            return is_only and group.last_enqueued == -1 and entry.state != recorder.CALL_STATE_STARTED
        return group.last_enqueued == self._own_number(before) != self._own_number(entry)

    def _transfers(self, key: GroupKey, entries: list[recorder.RecordedCall]) -> Iterator[Transfer]:
        for entry in entries:
            parts = _TRANSFER.search(entry.op)
            if parts is None:
                continue
            peer = int(parts[4])
            if peer >= len(key[1]):
                continue
            way, peer_rank = Way(parts[1]), key[1][peer]
            channel = (key, way, peer_rank)
            self._calls.transfers[channel] = number = self._calls.transfers.get(channel, 0) + 1
            yield Transfer(way, peer_rank, number)

    def _use_status(self) -> None:
        """Learn from the status what the ring does not show."""
        stale = self._watchdog_is_stale()
        for index, group in enumerate(self._dump.groups):
            key = self._keys[index]
            usable = group.has_status and group.last_enqueued >= 0 and key not in self._with_p2p
            if usable:
                self._calls.arrived[key] = max(self._calls.arrived.get(key, 0), group.last_enqueued)
            elif index not in self._newest and self._calls.counts_exact and self._dump.has_calls:
                self._calls.arrived.setdefault(key, 0)
            if (self._dump.has_wrapped or not self._dump.has_calls) and not self._first_done.get(index):
                # The oldest pending call of this group may have left the ring.
                if not usable or stale:
                    self._calls.may_hide |= index not in self._newest
                elif group.last_completed < group.last_enqueued:
                    self._add_lost(key, max(group.last_completed, 0) + 1)

    def _add_lost(self, key: GroupKey, seq: int) -> None:
        first = self._calls.first_pending_of(key)
        if first is None or seq < first.seq:
            self._calls.pending.append(
                Call(
                    rank=self._calls.rank,
                    group=key,
                    order=-1,
                    seq=seq,
                    op="",
                    signature="",
                    done=False,
                    started=None,
                    inside=False,
                    created_ns=0,
                    frame="",
                )
            )

    def _watchdog_is_stale(self) -> bool:
        """Return whether the watchdog no longer updates the status: calls are complete and it has not retired them."""
        kept = [
            entry for entry in self._dump.calls if entry.state == recorder.CALL_STATE_COMPLETED and not entry.retired
        ]
        return len(kept) > 1


def _closes(entry: recorder.RecordedCall) -> bool:
    return not entry.p2p and bool(_CLOSING.search(entry.op)) and not _ONE_CALL.search(entry.op)


def _is_bare_closing(entry: recorder.RecordedCall) -> bool:
    return _operation(entry.op) == "coalesced"


def _operation(op: str) -> str:
    return op.rpartition(":")[2]


_EQUAL_INPUTS = frozenset(
    (
        "all_reduce",
        "allreduce",
        "broadcast",
        "reduce",
        "all_gather",
        "_all_gather_base",
        "_allgather_base",
        "reduce_scatter",
        "_reduce_scatter_base",
        "all_reduce_barrier",
    )
)
"""Operations whose inputs have equal sizes and types on all ranks."""


def _signature(members: list[recorder.RecordedCall], closing: recorder.RecordedCall) -> str:
    """Return what all ranks must agree in."""
    if members[0] is not closing:
        counts: Mapping[str, int] = _counted(_operation(member.op) for member in members)
        return " + ".join(f"{count} x {op}" for op, count in sorted(counts.items()))
    op = _operation(closing.op)
    return f"{op} {closing.input_sizes} {closing.dtypes}".rstrip() if op in _EQUAL_INPUTS else op


def _counted(words: Iterator[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    return counts
