"""An exhaustive answer to whom a set of dumps shows, which shares no code with the detector or the machine.

It tries every set of at most three faulty ranks, and keeps those that explain the dumps. A faulty rank makes no more
calls, or its oldest pending call never ends on it. Dead ranks are faulty in every set.

Each dump gives facts, and each fact may be open: whether a rank has made a call, and whether the call is still pending
on it. The number of a call, ``pg_status`` and counts of messages decide it. A lost entry, a missing dump, a status that
may count messages and a call that has not returned leave it open, and all readings are then allowed.

A set explains the dumps under two conditions:

- No rank is impossible. Outside the set no rank is idle while others wait for a call that it has not made. No rank
  outside it holds a call alone that needs all members and has ended on all others.
- Each other rank with a pending call is blocked. Its oldest pending call waits for a faulty rank, or for one that is
  blocked before that call. This is a least fixpoint: ranks that only wait for each other are not blocked.

A rank that may wait for something that no dump shows is possibly blocked. It explains others and needs no explanation.
The empty set stands for a fault of the network or of all ranks. Any call that all its members may have made and may
still hold is then blocked.

Smaller sets hide larger ones. A rank is decidable if it is in every smallest set. Calls that do not fit under one
number are not judged here.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from math import inf
from typing import Any

MOST_RANKS = 16
"""Largest world that is judged: brute force takes too long in larger ones."""
_MOST_FAULTS = 3
_ABSENT, _PENDING, _DONE = 1, 2, 4
"""Bits of what a call may be on a rank: not made, made and not ended, ended."""
_OPEN = _ABSENT | _PENDING | _DONE
_NEEDS_ALL = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
_MESSAGE = re.compile(r"(send|recv) \d+(?:->|<-)(\d+)")
_LYING = ("ALLGATHER_coalesced", "REDUCE_SCATTER_coalesced")
"""Closing entries that may look completed while their calls run."""


@dataclass(frozen=True)
class _Part:
    """One message of a call."""

    peer: int
    is_send: bool
    index: int
    """Number among the messages of its group, peer and direction that the dump shows."""


@dataclass(frozen=True)
class _Call:
    """A collective, a message or a batch of messages."""

    group: str
    number: int
    op: str
    sizes: str
    parts: tuple[_Part, ...]
    is_pending: bool


@dataclass
class _Shown:
    """What one dump shows."""

    calls: list[_Call] = field(default_factory=list)
    pending: list[_Call] = field(default_factory=list)
    done: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Group -> the newest collective that has certainly ended. Older ones have ended, too."""
    doubtful: set[tuple[str, int]] = field(default_factory=set)
    """Group and number of calls that look completed and may be pending."""
    low: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Group -> how many collectives the rank has made at least."""
    high: dict[str, float] = field(default_factory=lambda: defaultdict(lambda: inf))
    """Group -> how many collectives it has made at most."""
    whole: bool = False
    """Whether it holds every entry that was ever made."""
    lossy: bool = False
    """Whether a pending call may be lost."""
    unordered: bool = False
    """Whether an older call may be pending than those that are certainly pending."""
    may_hide: bool = False
    """Whether the host may wait for something that the dump does not show."""

    def state(self, group: str, number: int) -> int:
        """Return the bits of what a collective may be on this rank."""
        if any((call.group, call.number) == (group, number) and not call.parts for call in self.pending):
            return _PENDING
        if number <= self.done[group]:
            return _DONE
        if number > self.high[group]:
            return _ABSENT
        absent = _ABSENT if number > self.low[group] else 0
        return absent | _DONE | (_PENDING if self.lossy or (group, number) in self.doubtful else 0)


class Reference:
    """What dumps show of a world of at most 16 ranks."""

    def __init__(self, documents: Mapping[int, dict[str, Any] | None], dead: Iterable[int], world_size: int) -> None:
        self._size, self._dead = world_size, _bits(dead)
        given = {rank: document for rank, document in documents.items() if document is not None}
        configs = [config for document in given.values() for config in document["pg_config"].values()]
        self._members: dict[str, tuple[int, ...]] = {
            config["name"]: tuple(json.loads(config["ranks"])) for config in configs
        }
        self._message_groups = {
            entry["process_group"][0]
            for document in given.values()
            for entry in document.get("entries", ())
            if _is_message(entry)
        }
        self._single_groups: set[str] = set()
        """Groups with messages that are part of no batch."""
        self._shown: dict[int, _Shown] = {}
        if any(document.get("entries") for document in given.values()):  # else they may be of the status alone
            self._shown = {rank: self._read(document) for rank, document in given.items()}
        self._note_hidden(given)
        self.mismatched = self._find_mismatch()
        """Whether two calls under one number do not fit."""
        self._prepare()

    def decidable(self) -> frozenset[int]:
        """Return the ranks that are in every smallest explanation."""
        found = [] if self.mismatched else self.explanations()
        return frozenset[int].intersection(*found) if found else frozenset()

    def explanations(self) -> list[frozenset[int]]:
        """Return the smallest sets of faulty ranks that explain the dumps, dead ranks included."""
        found: list[int] = []
        living = [rank for rank in range(self._size) if not self._dead >> rank & 1]
        for count in range(_MOST_FAULTS + 1):
            for ranks in combinations(living, count):
                faulty = self._dead | _bits(ranks)
                if not any(smaller & faulty == smaller for smaller in found) and self._explains(faulty):
                    found.append(faulty)
        return [frozenset(rank for rank in range(self._size) if faulty >> rank & 1) for faulty in found]

    def _explains(self, faulty: int) -> bool:
        if self._impossible & ~faulty:
            return False
        blocked = self._hiding & ~faulty
        if not faulty:
            blocked |= self._held_by_all
        left = [rank for rank in self._waiting if not (faulty | blocked) >> rank & 1]
        while left:
            moved = [rank for rank in left if self._if_faulty[rank] & faulty or self._if_blocked[rank] & blocked]
            if not moved:
                return False
            blocked |= _bits(moved)
            left = [rank for rank in left if rank not in moved]
        return True

    def _prepare(self) -> None:
        """Find for each rank which others explain its oldest pending call, as bits of ranks."""
        self._hiding = _bits(rank for rank in range(self._size) if self._is_hiding(rank))
        self._waiting = [rank for rank, shown in self._shown.items() if shown.pending and not self._is_hiding(rank)]
        self._if_faulty: dict[int, int] = {}
        self._if_blocked: dict[int, int] = {}
        self._held_by_all = 0
        for rank in self._waiting:
            states = list(self._states(rank, self._shown[rank].pending[0]))
            self._if_faulty[rank] = _bits(peer for peer, state, _ in states if state != _DONE)
            self._if_blocked[rank] = _bits(
                peer for peer, state, is_oldest in states if state & (_ABSENT if is_oldest else _ABSENT | _PENDING)
            )
            if all(state & _PENDING or self._may_hold(peer, state) for peer, state, _ in states):
                self._held_by_all |= 1 << rank
        self._impossible = _bits(self._impossible_ranks())

    def _is_hiding(self, rank: int) -> bool:
        """Return whether a rank may wait for something that no dump shows."""
        shown = self._shown.get(rank)
        if shown is None or shown.lossy or shown.unordered:
            return True
        return shown.may_hide and not shown.pending

    def _may_hold(self, peer: int, state: int) -> bool:
        return state != _DONE and self._is_hiding(peer)

    def _states(self, rank: int, call: _Call) -> Iterator[tuple[int, int, bool]]:
        """Yield the other sides of a call, its state there, and whether it is the oldest pending call there."""
        if not call.parts:
            for peer in self._members.get(call.group, ()):
                if peer != rank:
                    shown = self._shown.get(peer)
                    oldest = shown.pending[0] if shown and shown.pending and not self._is_hiding(peer) else None
                    is_oldest = oldest is not None and (oldest.group, oldest.number) == (call.group, call.number)
                    state = shown.state(call.group, call.number) if shown else _OPEN
                    yield peer, state, is_oldest and oldest is not None and not oldest.parts
        for part in call.parts:
            yield part.peer, *self._message_state(rank, call.group, part)

    def _message_state(self, rank: int, group: str, part: _Part) -> tuple[int, bool]:
        """Return the state of the other side of a message, and whether it is the oldest pending call there."""
        own, shown = self._shown[rank], self._shown.get(part.peer)
        if shown is None:
            return _OPEN, False
        sides = [
            (call, side.index)
            for call in shown.calls
            if call.group == group
            for side in call.parts
            if side.peer == rank and side.is_send != part.is_send
        ]
        oldest = shown.pending[0] if shown.pending and not self._is_hiding(part.peer) else None
        # Messages of a pair end in their order. So if both sides have one as their oldest pending call, it is the same.
        if oldest is not None and any(call is oldest for call, _ in sides):
            return _PENDING, True
        if not (own.whole and shown.whole):
            return _OPEN, False
        for call, index in sides:
            if index == part.index:
                return _PENDING if call.is_pending else _DONE, False
        return _ABSENT, False

    def _impossible_ranks(self) -> Iterator[int]:
        """Yield ranks whose dumps no healthy rank gives."""
        for rank, shown in self._shown.items():
            for call in shown.pending:
                states = list(self._states(rank, call))
                for peer, state, _ in states:
                    if state == _ABSENT and not self._is_hiding(peer) and not self._shown[peer].pending:
                        yield peer
                needs_all = not call.parts and call.op.lstrip("_").startswith(_NEEDS_ALL)
                if needs_all and states and all(state == _DONE for _, state, _ in states):
                    # One other alone that does not show its call may have made another one.
                    other = self._shown[states[0][0]].calls
                    if len(states) > 1 or any((o.group, o.number) == (call.group, call.number) for o in other):
                        yield rank

    def _find_mismatch(self) -> bool:
        """Return whether two ranks show different calls under one number. Sizes of an all_to_all may differ."""
        seen: dict[tuple[str, int], tuple[str, str]] = {}
        for shown in self._shown.values():
            for call in shown.calls:
                if not call.parts:
                    fits = (call.op, call.sizes if call.op != "all_to_all" else "")
                    if seen.setdefault((call.group, call.number), fits) != fits:
                        return True
        return False

    def _note_hidden(self, given: Mapping[int, dict[str, Any]]) -> None:
        """Mark ranks that may be making a communicator, of which their dump shows nothing."""
        kinds = {config["desc"] for document in given.values() for config in document["pg_config"].values()}
        single = {group for group in self._single_groups if len(self._members[group]) > 2}
        for rank, shown in self._shown.items():
            document = given[rank]
            config = document["pg_config"]
            own = {name for name, members in self._members.items() if rank in members}
            has_all = own <= config.keys() and kinds == {described["desc"] for described in config.values()}
            # Ids count the groups of a process. So a gap shows a group whose first call is not recorded.
            ids = sorted({*map(int, document["pg_status"]), *(e["pg_id"] for e in document.get("entries", ()))})
            has_gap = bool(ids) and ids != list(range(ids[0], ids[-1] + 1))
            # Single messages have a communicator for each pair, which a group of two makes with its first message.
            shown.may_hide |= not has_all or has_gap or bool(single & own)

    def _read(self, document: dict[str, Any]) -> _Shown:
        entries = document.get("entries", [])
        shown = _Shown(whole=bool(entries) and [entry["record_id"] for entry in entries] == list(range(len(entries))))
        loose: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
        found: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
        """Entries that stand for a call, each with its messages."""
        for entry in entries:
            key = (entry["pg_id"], entry["p2p_seq_id"])
            if _op(entry) == "coalesced":
                messages = loose.pop(key, [])
                found = [pair for pair in found if all(pair[0] is not message for message in messages)]
                found.append((entry, messages))
            elif not _op(entry).endswith("_oop"):  # members of a coalesced collective never move
                found.append((entry, [entry] if entry["is_p2p"] else []))
                if entry["is_p2p"]:
                    loose[key].append(entry)
        is_pending_only = all(_is_pending(entry) for entry in entries)
        alone = [entry for messages in loose.values() for entry in messages]
        self._single_groups.update(entry["process_group"][0] for entry in alone)
        counts: dict[tuple[str, int, bool], int] = defaultdict(int)
        for entry, messages in found:
            parts = tuple(self._part(message, counts) for message in messages)
            is_message = _is_message(entry)
            if is_message and (not parts or (is_pending_only and any(entry is message for message in alone))):
                # Its messages are lost, or it is a member of a batch that has ended and is left out.
                shown.unordered |= _is_pending(entry)
                continue
            # The call of the newest entry may not have returned: it then looks completed, and is not retired.
            in_call = entry is entries[-1] and not _is_pending(entry) and not entry["retired"]
            shown.may_hide |= in_call
            self._add(shown, entry, parts, is_doubtful=in_call or _op(entry) in _LYING)
        shown.pending = [
            call for call in shown.calls if call.is_pending and (call.parts or call.number > shown.done[call.group])
        ]
        self._note_positions(shown, document, is_pending_only)
        first = found[0][0] if found else None
        shown.lossy |= first is not None and not is_pending_only and entries[0]["record_id"] > 0 and _is_pending(first)
        return shown

    def _part(self, message: dict[str, Any], counts: dict[tuple[str, int, bool], int]) -> _Part:
        group = message["process_group"][0]
        found = _MESSAGE.fullmatch(_op(message))
        assert found is not None
        peer, is_send = self._members[group][int(found[2])], found[1] == "send"
        counts[group, peer, is_send] += 1
        return _Part(peer, is_send, counts[group, peer, is_send])

    def _add(self, shown: _Shown, entry: dict[str, Any], parts: tuple[_Part, ...], *, is_doubtful: bool) -> None:
        group, number, op = entry["process_group"][0], entry["collective_seq_id"], _op(entry)
        shown.calls.append(_Call(group, number, op, str(entry["input_sizes"]), parts, _is_pending(entry)))
        if not parts and not _is_pending(entry):
            if is_doubtful:
                shown.doubtful.add((group, number))
            else:
                shown.done[group] = max(shown.done[group], number)

    def _note_positions(self, shown: _Shown, document: dict[str, Any], is_pending_only: bool) -> None:
        """Note how many collectives of each group the rank has made, and whether pending ones are lost."""
        newest: dict[str, int] = defaultdict(int)
        collectives: set[str] = set()
        for entry in document.get("entries", ()):
            group = entry["process_group"][0]
            newest[group] = max(newest[group], entry["collective_seq_id"])
            if not _is_message(entry):
                collectives.add(group)
        for group, number in newest.items():
            shown.low[group] = number
            if group in collectives or not is_pending_only:
                shown.high[group] = number
        for group, number in shown.doubtful:
            shown.low[group] = min(shown.low[group], number - 1)
        for group, enqueued, completed in _statuses(document):
            if group in self._message_groups or enqueued < 0:
                continue
            if group not in newest:
                shown.low[group] = shown.high[group] = enqueued
            held = sum(call.group == group for call in shown.pending)
            shown.lossy |= is_pending_only and enqueued - max(completed, 0) != held


def _bits(ranks: Iterable[int]) -> int:
    return sum(1 << rank for rank in set(ranks))


def _op(entry: Mapping[str, Any]) -> str:
    return str(entry["profiling_name"]).removeprefix("nccl:")


def _is_message(entry: Mapping[str, Any]) -> bool:
    return bool(entry["is_p2p"]) or _op(entry) == "coalesced"


def _is_pending(entry: Mapping[str, Any]) -> bool:
    return entry["state"] != "completed" and not entry["retired"]


def _statuses(document: Mapping[str, Any]) -> Iterator[tuple[str, int, int]]:
    """Yield the name of each group with its newest enqueued and completed number, where the name is known.

    Ids count the groups of a process in the order of their making, and so do names that are numbers.
    """
    status, config = document["pg_status"], document["pg_config"]
    names = {str(entry["pg_id"]): entry["process_group"][0] for entry in document.get("entries", ())}
    if len(status) == len(config) and all(name.isdecimal() and len(name) < 9 for name in config):
        names = dict(zip(sorted(status, key=int), sorted(config, key=int), strict=True)) | names
    for key, numbers in status.items():
        if key in names:
            yield names[key], int(numbers["last_enqueued_collective"]), int(numbers["last_completed_collective"])
