"""Says whether what the ranks show decides who is at fault.

Who is at fault comes from ``faults``. This only says whether a careful reader can know it. It follows what each rank's
first unfinished call waits for, with the operations of the machine in hand, and leaves out what the dumps do not hold.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf

from tests.simulation.nccl.device import Communicator, Operation, Rendezvous
from tests.simulation.nccl.documents import Form, looks_completed, retired_s, visible
from tests.simulation.nccl.fault import Fault
from tests.simulation.nccl.machine import Machine
from tests.simulation.nccl.recorder import Entry


@dataclass(frozen=True)
class Truth:
    """Who is at fault, and what a verdict may say."""

    kind: str
    """Kind of the fault."""
    culprits: frozenset[int]
    decidable: bool
    """Whether the evidence shows it. If not, a verdict must name nobody."""
    may_name: frozenset[int]
    """Ranks that a verdict may name along with the culprits, or in their place where it cannot be decided."""
    shown: frozenset[int]
    """Culprits that the evidence shows: one of two may stand behind the other. They must be named."""
    both_sides: bool = False
    """Whether the answer is that two sides disagree: the culprits and at least one other must be named."""


@dataclass
class View:
    """What is known of all ranks at the time of their dumps."""

    machine: Machine
    forms: Mapping[int, Form]
    at_s: Mapping[int, float]
    """Time of each rank's dump."""
    readable: frozenset[int]
    """Ranks with a dump."""
    dead: frozenset[int]
    entries: dict[int, list[Entry]] = field(init=False)
    """What the dumps hold, by rank."""
    made: dict[int, list[Entry]] = field(init=False)
    """What the recorders noted until then."""

    def __post_init__(self) -> None:
        recorders = self.machine.recorders
        self.made = {
            rank: [entry for entry in recorder.entries if entry.created_s <= self.at_s[rank]]
            for rank, recorder in enumerate(recorders)
        }
        self.entries = {
            rank: visible(recorders[rank], self.forms[rank], self.at_s[rank]) for rank in sorted(self.readable)
        }
        self._owners = {
            rank: {id(entry.operation): entry for entry in entries if entry.operation is not None}
            for rank, entries in self.made.items()
        }
        self.blockers = {rank: self._blocker(rank) for rank in self.entries}

    def whole(self, rank: int) -> bool:
        """Return whether a dump holds every entry that its recorder ever noted."""
        return rank in self.entries and len(self.entries[rank]) == len(self.made[rank])

    def _blocker(self, rank: int) -> Entry | None:
        """Return the first unfinished entry, None if there is none or the ring has lost it."""
        for entry in self.made[rank]:
            if entry.operation is not None and not looks_completed(entry, self.at_s[rank]):
                return entry if self.entries[rank] and entry.record_id >= self.entries[rank][0].record_id else None
        return None

    def entry_of(self, rank: int, operation: Operation | None) -> Entry | None:
        """Return the entry of an operation, None if it is not recorded."""
        return None if operation is None else self._owners[rank].get(id(operation))

    def position(self, rank: int, group: int) -> int | None:
        """Return the number of a rank's newest collective of a group, None if its dump does not show it."""
        if rank not in self.readable:
            return None
        own = [entry for entry in self.made[rank] if entry.group == group]
        calls = [entry for entry in own if not entry.of_messages]
        newest = calls[-1] if calls else None
        shown = self.entries[rank]
        if newest is not None and shown and newest.record_id >= shown[0].record_id and newest in shown:
            return newest.collective
        messages = any(entry.of_messages for entry in own)
        if not self.forms[rank].ring:
            return None
        if newest is not None and newest.watched and newest.returned_s <= self.at_s[rank] and not messages:
            return newest.collective  # ``last_enqueued`` has it
        return 0 if newest is None and self.whole(rank) else None


def edges(view: View) -> dict[int, set[int]]:
    """Return for which ranks each rank waits, as far as the dumps show it."""
    return {rank: set(_waits(view, rank, entry)) for rank, entry in view.blockers.items() if entry is not None}


def _waits(view: View, rank: int, entry: Entry) -> Iterator[int]:
    operation = entry.operation
    assert operation is not None
    if operation.collective is not None:
        members = view.machine.program.groups[entry.group].members
        for other in members:
            if other == rank:
                continue
            if other in view.dead:
                yield other
                continue
            position = view.position(other, entry.group)
            if position is not None and (position < entry.collective or _is_queued(view, other, entry)):
                yield other
        return
    for transfer in operation.transfers:
        other = transfer.key[0] if transfer.key[1] == rank else transfer.key[1]
        if transfer.done_s <= view.at_s[rank]:
            continue
        if other in view.dead:
            yield other
            continue
        if not (view.whole(rank) and view.whole(other)):
            continue
        side = transfer.sender if transfer.key[0] == other else transfer.receiver
        theirs, blocker = view.entry_of(other, side), view.blockers.get(other)
        if theirs is None or (blocker is not None and blocker.record_id < theirs.record_id):
            yield other


def _is_queued(view: View, rank: int, entry: Entry) -> bool:
    """Return whether a rank has the same call behind another one that is not finished either."""
    blocker = view.blockers.get(rank)
    if blocker is None:
        return False
    same = [
        own
        for own in view.made[rank]
        if own.group == entry.group and own.collective == entry.collective and own.operation and not own.of_messages
    ]
    return bool(same) and blocker.record_id < same[0].record_id


def sinks(waits: Mapping[int, set[int]]) -> frozenset[int]:
    """Return the ranks at the ends of the chains: for whom others wait and who wait for nobody outside their circle."""
    nodes = set(waits) | {other for others in waits.values() for other in others}
    reach = {node: _reachable(waits, node) for node in nodes}
    found = set()
    for node in nodes:
        circle = {other for other in reach[node] if node in reach[other]}
        waited_for = any(node in others for others in waits.values())
        if waited_for and reach[node] <= circle:
            found.add(node)
    return frozenset(found)


def _reachable(waits: Mapping[int, set[int]], start: int) -> set[int]:
    seen: set[int] = set()
    left = [start]
    while left:
        for other in waits.get(left.pop(), ()):
            if other not in seen:
                seen.add(other)
                left.append(other)
    return seen


_CIRCLES = ("skipped", "no_receive", "no_send")
"""Faults after which the culprit continues and soon waits for its victims: a circle, in which all may be named."""


def judge_evidence(view: View, fault: Fault, *, stacks: bool) -> Truth:
    """Return the truth of a case. ``stacks``: the stacks of all ranks are given."""
    culprits = fault.culprits
    mismatched = _mismatches(view)
    if mismatched:
        members = frozenset(rank for rendezvous in mismatched for rank in rendezvous.communicator.members)
        shown = any(_shows_both_sides(view, rendezvous) for rendezvous in mismatched)
        return Truth(fault.kind, culprits, shown, members, culprits, both_sides=True)
    alone = frozenset(rank for rank in fault.stuck if _alone_holds(view, rank))
    found = sinks(edges(view)) - fault.stuck | alone
    if culprits and found > culprits and (fault.both_sides or fault.kind in _CIRCLES):
        return Truth(fault.kind, culprits, True, found, culprits, fault.both_sides)
    if found and found <= culprits:
        return Truth(fault.kind, culprits, True, culprits, found)
    if (stacks and _all_others_join(view, fault)) or _is_shown_otherwise(view, fault):
        return Truth(fault.kind, culprits, True, culprits, culprits)
    circle = found if culprits <= found else frozenset()
    return Truth(fault.kind, culprits, False, frozenset() if fault.closed else culprits | circle, frozenset())


def _mismatches(view: View) -> list[Rendezvous]:
    found = []
    for communicator in view.machine.communicators.all():
        found += [rendezvous for rendezvous in communicator.rendezvous if rendezvous.mismatched]
    return found


def _shows_both_sides(view: View, rendezvous: Rendezvous) -> bool:
    """Return whether dumps hold two calls of one number that do not fit."""
    shown = set()
    for rank, fits in rendezvous.fits.items():
        if any(
            entry.operation is not None and entry.operation.collective is rendezvous
            for entry in view.entries.get(rank, ())
        ):
            shown.add(fits)
    return len(shown) > 1


def _is_shown_otherwise(view: View, fault: Fault) -> bool:
    """Return whether timing, a call that has not returned or a known death shows the culprits."""
    if fault.kind == "kernel_hang":
        return any(_timing_shows(view, fault, communicator) for communicator in view.machine.communicators.all())
    if fault.kind == "in_call":
        return all(_call_shows(view, rank) for rank in fault.culprits)
    return bool(fault.dead)  # a known death needs no dump


def _alone_holds(view: View, rank: int) -> bool:
    """Return whether a rank holds a call that all other living members show as finished."""
    held = view.blockers.get(rank)
    if held is None or held.operation is None or not held.operation.never_ends:
        return False
    others = set(view.machine.program.groups[held.group].members) - {rank} - view.dead
    return all(_shows_done(view, other, held) for other in others)


def _shows_done(view: View, rank: int, call: Entry) -> bool:
    """Return whether a rank shows a collective as retired, or the status of its group as completed."""
    if rank not in view.readable or not view.forms[rank].ring:
        return False
    form, at_s = view.forms[rank], view.at_s[rank]
    own = [entry for entry in view.made[rank] if entry.group == call.group]
    retired = [entry for entry in own if retired_s(entry, form) <= at_s]
    if any(entry.collective == call.collective and entry in view.entries[rank] for entry in retired):
        return True
    messages = any(entry.of_messages for entry in own)
    return not messages and any(entry.collective >= call.collective for entry in retired)


def _all_others_join(view: View, fault: Fault) -> bool:
    """Return whether all ranks but the culprit make a group or a communicator, so that one stack is elsewhere."""
    others = [host for host in view.machine.hosts if host.rank not in fault.culprits]
    return len(fault.culprits) == 1 and all(host.phase in ("init", "groups") for host in others)


def _timing_shows(view: View, fault: Fault, communicator: Communicator) -> bool:
    """Return whether all but the culprits have started a collective that all have called."""
    for rendezvous in communicator.rendezvous:
        if len(rendezvous.fits) < len(communicator.members) or len(rendezvous.started) == len(communicator.members):
            continue
        if set(communicator.members) - rendezvous.started.keys() != fault.culprits:
            continue
        holders = {
            rank
            for rank in communicator.members
            if view.entries.get(rank)
            and view.forms[rank].timing
            and any(entry.operation and entry.operation.collective is rendezvous for entry in view.entries[rank])
        }
        return holders >= fault.culprits and len(holders) > len(fault.culprits)
    return False


def _call_shows(view: View, rank: int) -> bool:
    """Return whether a rank alone has a newest entry that is complete and was never enqueued."""
    if rank not in view.entries or not view.whole(rank):
        return False
    entry = view.made[rank][-1]
    alone = not any(host.phase == "launch" for host in view.machine.hosts)
    plain = not any(own.of_messages for own in view.made[rank] if own.group == entry.group)
    return alone and plain and entry.returned_s == inf and not view.machine.settings.blocking_wait
