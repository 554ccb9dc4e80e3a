"""Reads the calls of one rank from its recorder's entries: what is pending, and how far it has come in each group.

An entry is not always a call of its own. A batch of calls leaves one entry for each member, whose state torch never
updates, and a closing entry that alone is followed (ProcessGroupNCCL::endCoalescing). Here a batch is one call.
"""

import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

from holdfast_core.diagnosis.devices.rank_calls import Call, GroupUses, RankCalls, Transfer, Way
from holdfast_core.diagnosis.operations import agreed, ends_together, input_bytes, operation
from holdfast_core.diagnosis.wait_for_graph import GroupKey
from holdfast_proto.v1 import recorder_pb2 as recorder

_CLOSING = re.compile(r"(^|:)(coalesced|\w+_coalesced)$")
_ONE_CALL = re.compile(r"(allreduce|tensor)_coalesced$")
"""The fast paths of coalesced calls, which make one ordinary entry."""
_OWN_RECORDERS = ("nccl:", "xccl:")
"""Calls of backends that fill a recorder themselves. Torch's hook fills it for others: its status does not have the
numbers of the calls, but of all operations of a group, and begins with 0 (FlightRecorderHook.cpp)."""
_NO_END = ("c10d:", "mpi:", "ucc:")
"""Calls that only the hook records, and of which it learns no end: in torch 2.14 all ("c10d:"), later those of backends
that report none."""
_TRANSFER = re.compile(r"(send|recv) (\d+)(->|<-)(\d+)$")


Numbered = tuple[GroupKey, int]
"""Group and number of a collective."""


def calls_of(
    rank: int, dump: recorder.RecorderDump, keys: list[GroupKey], uses: GroupUses, shared: dict[Numbered, Numbered]
) -> RankCalls:
    """Return what a rank's dump shows.

    ``keys``: for each group of the dump, its key. ``shared``: the keys of collectives that other ranks have, to use and
    to fill in. All members of a group have the same ones, and each of its own would take a hundred bytes.
    """
    return _Reading(rank, dump, keys, uses, shared).result()


class _Reading:
    def __init__(
        self,
        rank: int,
        dump: recorder.RecorderDump,
        keys: list[GroupKey],
        uses: GroupUses,
        shared: dict[Numbered, Numbered],
    ) -> None:
        self._shared = shared
        self._dump = dump
        self._keys = keys
        self._uses = uses
        self._is_partial = dump.is_partial or uses.only_pending
        self._captured: set[int] = set()
        """Entries of calls that became part of a CUDA graph. They were never made, and nothing will complete them."""
        self._calls = RankCalls(
            rank, counts_exact=not dump.has_wrapped and not self._is_partial, is_partial=self._is_partial
        )
        self._newest: dict[int, recorder.RecordedCall] = {}
        self._before: dict[int, recorder.RecordedCall] = {}
        self._members: dict[int, list[recorder.RecordedCall]] = {}
        """Entries that stand for a call -> the members of its batch, by order; no members: no batch."""
        self._has_unread_status = False
        """Whether the ring may have lost the oldest pending call of a group, and the status does not show it."""
        self._doubtful: list[int] = []
        """Pending batches whose members are lost. In a dump without complete calls also those of which nothing shows
        whether they are pending: transfers, and members of a batch."""
        self._made: dict[tuple[GroupKey, str], tuple[GroupKey, str]] = {}
        """Group and signature of each kind of call, once: a history of thousands holds the same few again and again."""
        self._first_done: dict[int, bool] = {}
        """Group -> whether the oldest call in the ring is done."""

    def result(self) -> RankCalls:
        self._members = self._find_batches()
        entries = self._dump.calls
        self._calls.hides_transfers = any(map(_hides_transfers, entries))
        self._calls.ends_at_issue = any(map(_ended_at_issue, entries))
        timed = any(entry.state == recorder.CALL_STATE_STARTED for entry in entries)
        self._calls.knows_started = timed or any(group.last_started >= 0 for group in self._groups_with_status())
        followed = [entry for entry in entries if entry.order in self._members]
        self._captured = self._find_captured(followed)
        for entry in followed:
            self._before[entry.group] = self._newest.get(entry.group, entry)
            self._newest[entry.group] = entry
        self._note_positions()
        for entry in followed:
            self._add(entry, self._members[entry.order])
        self._use_status()
        if self._dump.bad_entries:
            # Nobody knows what these were: the newest call of a group perhaps, or one that is pending.
            self._calls.arrived.clear()
            self._calls.may_hide = True
            self._calls.counts_exact = False
        self._calls.pending.sort(key=lambda call: call.order)
        if self._uses.only_pending and not self._dump.bad_entries:
            self._note_over()
        self._calls.front_is_certain = self._is_front_certain()
        return self._calls

    def _is_front_certain(self) -> bool:
        front = self._calls.front
        if front is None:
            return not self._doubtful
        lost = sum(1 for call in self._calls.pending if call.order < 0)
        if lost > 1:
            return False  # nothing shows which of them came first
        if any(order < front.order for order in self._doubtful):
            return False
        if self._is_partial:
            return True
        if not lost and (front.order > min(self._members, default=-1) or not self._dump.has_wrapped):
            return True
        # The ring begins with a pending call, and may have lost older ones. The status shows whether it has, where it
        # can be read: then these calls are in ``pending``.
        return not self._has_unread_status

    def _note_over(self) -> None:
        """Note as over every collective before the oldest pending one of a group."""
        for key in self._calls.arrived.keys() & self._uses.with_collectives:
            first = self._calls.first_pending_of(key)
            self._calls.past[key] = self._calls.arrived[key] if first is None else first.seq - 1
            if key not in self._uses.with_early_ends:
                self._calls.over[key] = self._calls.past[key]

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
                # collective before it. That collective has a lower number of transfers.
                members = open_.pop(key, [])
                if not members and _is_bare_closing(entry):
                    members = open_.pop((entry.group, True, 0, entry.p2p_seq), [])
                for member in members:
                    found.pop(member.order, None)
                found[entry.order] = members
            elif not entry.retired and entry.state != recorder.CALL_STATE_COMPLETED:  # no member gets that far
                open_.setdefault(key, []).append(entry)
        for (_, is_p2p, _, _), members in open_.items():
            # Closing entries that are complete are left out, and their members, which never complete, are not. Where
            # later collectives were made, they show that.
            is_left_out = self._is_partial or self._was_followed(members[0])
            if is_left_out and (is_p2p or len(members) > 1):
                for member in members:
                    found.pop(member.order, None)
                    self._doubtful.append(member.order)
        if self._is_partial:
            # Nothing shows here whether such a call is pending or part of a CUDA graph: see _find_captured.
            self._doubtful += [entry.order for entry in self._dump.calls if _ONE_CALL.search(entry.op)]
        return found

    def _was_followed(self, entry: recorder.RecordedCall) -> bool:
        """Return whether the status of a collective's group counts a later collective."""
        group = self._dump.groups[entry.group]
        is_counted = group.has_status and self._uses.counts_collectives(self._keys[entry.group]) and not entry.p2p
        return is_counted and entry.seq < group.last_enqueued

    def _find_captured(self, followed: list[recorder.RecordedCall]) -> set[int]:
        """Return the entries of captured calls.

        Some kinds of calls are recorded while a graph is captured, and others only counted. So such a call is not done
        although a later one of its group is, which shares its stream, or there is a gap in the numbers before it.
        """
        by_group: dict[int, list[recorder.RecordedCall]] = {}
        for entry in followed:
            if not self._is_transfer(entry):
                by_group.setdefault(entry.group, []).append(entry)
        found: set[int] = set()
        for entries in by_group.values():
            # A closing entry may be complete before its calls are: its event is on another stream (endCoalescing).
            newest_done = max((entry.order for entry in entries if entry.retired and not _closes(entry)), default=-1)
            for i, entry in enumerate(entries):
                if entry.retired or entry.state == recorder.CALL_STATE_COMPLETED:
                    continue
                has_gap = i > 0 and entry.seq > entries[i - 1].seq + 1 and not self._is_partial
                if has_gap or entry.order < newest_done:
                    found.add(entry.order)
        return found

    def _is_transfer(self, entry: recorder.RecordedCall) -> bool:
        return entry.p2p or any(member.p2p for member in self._members[entry.order])

    def _own_number(self, entry: recorder.RecordedCall) -> int:
        """Return the number with which a call appears in its group's status."""
        return entry.p2p_seq if self._is_transfer(entry) else entry.seq

    def _note_positions(self) -> None:
        newest: dict[int, int] = {}
        for entry in self._dump.calls:
            group = entry.group
            newest[group] = max(newest.get(group, 0), entry.seq)
        for group, seq in newest.items():
            key = self._keys[group]
            self._calls.arrived[key] = max(self._calls.arrived.get(key, 0), seq)

    def _add(self, entry: recorder.RecordedCall, members: list[recorder.RecordedCall]) -> None:
        key = self._keys[entry.group]
        is_p2p = self._is_transfer(entry)
        if not is_p2p and not members and _is_bare_closing(entry) and self._is_repeated(entry, key):
            # The closing entry of a batch of transfers whose members have left the ring: there is nothing to pair.
            if not entry.retired and entry.state != recorder.CALL_STATE_COMPLETED:
                self._doubtful.append(entry.order)
            return
        inside = self._is_inside(entry)
        order, op, retired = entry.order, entry.op, entry.retired  # each look into a message makes a new object
        completed = entry.state == recorder.CALL_STATE_COMPLETED and not inside
        done = retired or completed or order in self._captured
        self._first_done.setdefault(entry.group, done)
        transfers = tuple(self._transfers(key, members or [entry])) if is_p2p else ()
        place = key, 0 if is_p2p else entry.seq
        place = self._shared.setdefault(place, place)
        seq = place[1]
        # The host has returned from a call after which it has made another one: then its state is its own.
        is_over = retired or (completed and self._newest[entry.group] is not entry)
        if is_over and not is_p2p and not self._calls.ends_at_issue and ends_together(op):
            self._calls.over[key] = max(seq, self._calls.over.get(key, 0))
        call = Call(
            rank=self._calls.rank,
            group=key,
            order=order,
            seq=seq,
            op=operation(op) if not is_p2p or not members else "batch of transfers",
            signature=self._signature_of(entry, members),
            done=done,
            started=self._has_started(entry),
            inside=inside,
            frame=_once(entry.frame) or next((member.frame for member in members if member.frame), ""),
            transfers=transfers,
            is_p2p=is_p2p,
        )
        made = key, call.signature
        self._calls.history.append(self._made.setdefault(made, made))
        if not is_p2p:
            self._calls.at[place] = call
        if not done:
            self._calls.pending.append(call)

    def _signature_of(self, entry: recorder.RecordedCall, members: list[recorder.RecordedCall]) -> str:
        """Return what all ranks must agree in; empty if the ring has lost members of the batch."""
        if _closes(entry):
            oldest = self._dump.calls[0].order if self._dump.has_wrapped else -1
            if not members or members[0].order <= oldest:
                return ""
        return _signature(members or [entry])

    def _is_repeated(self, entry: recorder.RecordedCall, key: GroupKey) -> bool:
        return key in self._uses.with_p2p or (key, entry.seq) in self._calls.at

    def _has_started(self, entry: recorder.RecordedCall) -> bool | None:
        if not self._calls.knows_started:
            return None
        if self._is_inside(entry):
            return None  # the events of the call are not yet its own
        return entry.retired or entry.state in (recorder.CALL_STATE_STARTED, recorder.CALL_STATE_COMPLETED)

    def _is_inside(self, entry: recorder.RecordedCall) -> bool:
        """Return whether the host is still in the function that makes this call.

        The entry is written before NCCL is called, and ``last_enqueued`` afterwards (ProcessGroupNCCL::initWork and
        ::workEnqueue). In between, the state may say "completed": it then reads the event of an earlier call.
        """
        if self._newest[entry.group] is not entry:
            return False
        group = self._dump.groups[entry.group]
        has_numbers = group.has_status and entry.op.startswith(_OWN_RECORDERS)
        if entry.retired or not has_numbers or entry.order in self._captured:
            return False
        before = self._before[entry.group]
        if before is entry:
            # With TORCH_NCCL_BLOCKING_WAIT no status is ever written.
            is_only = not self._dump.has_wrapped and not self._is_partial
            is_written = not self._uses.has_blocking_wait
            is_reached = entry.state == recorder.CALL_STATE_STARTED
            return is_only and is_written and group.last_enqueued == -1 and not is_reached
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
            yield Transfer(way, peer_rank, number, input_bytes(entry.input_sizes, entry.dtypes))

    def _use_status(self) -> None:
        """Learn from the status what the ring does not show."""
        stale = self._watchdog_is_stale()
        for index, group in enumerate(self._dump.groups):
            key = self._keys[index]
            usable = group.has_status and group.last_enqueued >= 0 and self._uses.counts_collectives(key)
            if usable:
                self._calls.arrived[key] = max(self._calls.arrived.get(key, 0), group.last_enqueued)
            elif index not in self._newest and self._calls.counts_exact and self._dump.has_calls:
                self._calls.arrived.setdefault(key, 0)
            if group.member_runs or (group.has_status and group.last_enqueued >= 0):
                self._calls.ready.add(key)
                self._calls.kinds.add(group.description)
            if self._uses.only_pending and group.has_status and group.last_enqueued == group.last_completed:
                continue  # nothing is pending here that the dump does not show
            if (self._dump.has_wrapped or not self._dump.has_calls) and not self._first_done.get(index):
                # The oldest pending call of this group may have left the ring.
                is_unknown = group.has_status or self._dump.has_unnamed_status
                if not usable or stale:
                    self._has_unread_status |= is_unknown
                    self._calls.may_hide |= is_unknown and index not in self._newest
                elif group.last_completed < 0 < group.last_enqueued - 1:
                    # Either the first call of all is pending, or the watchdog has never looked.
                    self._calls.may_hide = self._has_unread_status = True
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
                    frame="",
                )
            )

    def _watchdog_is_stale(self) -> bool:
        """Return whether the watchdog no longer updates the status: calls are complete and it has not retired them."""
        kept = [
            entry for entry in self._dump.calls if entry.state == recorder.CALL_STATE_COMPLETED and not entry.retired
        ]
        return len(kept) > 1


def _hides_transfers(entry: recorder.RecordedCall) -> bool:
    """Return whether a call shows that its recorder may leave out pending transfers.

    Gloo's has none. Torch's hook takes each member of a batch for complete when it is made, because nccl2 returns a
    ``CompletedWork`` for it (``ProcessGroupNCCL::send`` in c10d/nccl2), and it never sees the batch itself.
    """
    return entry.op.startswith("gloo:") or (entry.p2p and not entry.op.startswith(_OWN_RECORDERS))


def _ended_at_issue(entry: recorder.RecordedCall) -> bool:
    """Return whether a call was retired when it was made.

    Torch's hook does so where it learns no end, and leaves the state at "scheduled". In a recorder of its own, a
    backend leaves a call like that if it has timed out.
    """
    is_unfinished = entry.state == recorder.CALL_STATE_SCHEDULED and not entry.op.startswith(_OWN_RECORDERS)
    return entry.retired and (is_unfinished or entry.op.startswith(_NO_END))


def _closes(entry: recorder.RecordedCall) -> bool:
    return not entry.p2p and _is_closing(entry.op)


@lru_cache(4096)  # see _TEXTS_KEPT of operations.py
def _is_closing(op: str) -> bool:
    return bool(_CLOSING.search(op)) and not _ONE_CALL.search(op)


@lru_cache(4096)
def _once(text: str) -> str:
    """Return a text that is equal, and the same object for all calls that have it."""
    return text


def _is_bare_closing(entry: recorder.RecordedCall) -> bool:
    return operation(entry.op) == "coalesced"


def _signature(members: list[recorder.RecordedCall]) -> str:
    """Return what all ranks must agree in: of a batch, the calls in it."""
    if len(members) == 1:
        return _signature_of(members[0])
    counts = Counter(operation(member.op) if member.p2p else _signature_of(member) for member in members)
    return " + ".join(f"{count} x {call}" for call, count in sorted(counts.items()))


def _signature_of(entry: recorder.RecordedCall) -> str:
    return agreed(entry.op, entry.input_sizes, entry.dtypes)
