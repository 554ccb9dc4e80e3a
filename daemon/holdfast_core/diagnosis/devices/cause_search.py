"""Who holds up a job on devices, from the recorders of its ranks: wait-for reasoning over asynchronous calls.

On devices a pending call proves little: a host may run a hundred calls ahead, and a call may wait behind another one in
the same queue. So a rank is named only where the recorders leave nothing else:

* Others wait for a call that it has certainly not made, and it has no pending call of its own: its host is elsewhere.
* It is dead, and others wait for it.
* It made another call than the others under the same number, or calls in the opposite order.
* The devices of others have reached a call, and its own has not, although nothing older is pending there; or its host
  does not return from making that call.

If all ranks have made a call and nothing older is pending, then a device or the network does not complete it, and no
rank is named. The edges lead from a rank to the calls that are pending on it, and from a call to the ranks that it
misses, or that cannot come to it before another one ends. Causes are where no edge leads on.
"""

from collections.abc import Collection, Iterator, Mapping

from holdfast_core.diagnosis.devices.causes import Cause, CauseKind, Confidence, Place
from holdfast_core.diagnosis.devices.rank_calls import RankCalls, known_next_calls
from holdfast_core.diagnosis.devices.shared_calls import earlier_mismatch, later_mismatch
from holdfast_core.diagnosis.wait_for_graph import GraphPart, GroupKey, SharedCall, WaitForGraph, circle_through

_SHORT_HISTORY = 10
"""Number of calls below which a ring is too short to show a routine."""

_FIRST_CALLS = 5
"""Collectives of a rank within which another communicator may still be made that no rank has shown yet."""

_LONG_SEQUENCE = 1000
"""Number of a group's call from which on all communicators are taken to exist, if the ring is too short to tell."""

_PAIR = 2
"""Members of a group in which all messages share one communicator."""

_MESSAGES = ("send ", "recv ")
"""Beginnings of messages that are in no batch."""

_MANY = 3
"""Ranks that must agree in a call for a single other one to be taken for the one that differs."""

_NOT_TO_BLAME = (Place.CALL, Place.LAUNCH, Place.SET_UP)
"""Places in which a host waits for other ranks, although the recorder shows no call."""


class CauseSearch:
    """Follows the edges to where none leads on."""

    def __init__(
        self,
        ranks: Mapping[int, RankCalls],
        found: list[SharedCall],
        dead: Collection[int],
        unread: Collection[int],
        places: Mapping[int, Place],
        *,
        guessed: Collection[GroupKey],
    ) -> None:
        self._ranks = ranks
        self._calls = self._sound = found
        self._dead = dead
        self._unread = unread
        self._places = places
        self._guessed = guessed
        self._groups = {group for calls in ranks.values() for group in calls.used_groups}
        made = {call for calls in ranks.values() for call in calls.history}
        self._of_pairs = {group for group, call in made if len(group[1]) > _PAIR and call.startswith(_MESSAGES)}
        self._nodes = sorted({*ranks, *dead, *unread, *(rank for call in found for rank in call.group[1])})
        self._missed: dict[int, list[SharedCall]] = {}
        """Rank -> calls that it has certainly not made, and in which others wait: perhaps for something older first."""
        for call in found:
            for rank in call.missing:
                self._missed.setdefault(rank, []).append(call)

    def causes(self) -> Iterator[Cause]:
        """Yield all causes, the most certain first."""
        if not self._calls:
            idle = list(self._of_idle_ranks(has_other_ends=False))
            yield from [cause for cause in idle if cause.ranks] or list(self._unawaited_dead_ranks()) or idle
            return
        mismatches = list(self._mismatches())
        # Who made other calls no longer means the same call by one number: nobody misses a later one there.
        apart = {cause.call.group for cause in mismatches if cause.call is not None and cause.call.seq}
        for rank, missed in self._missed.items():
            self._missed[rank] = [call for call in missed if call.group not in apart]
        self._sound = [call for call in self._calls if call.group not in apart]
        ends = list(self._of_ends())
        blamed = [*self._dead_ranks(), *mismatches, *self._of_idle_ranks(has_other_ends=bool(ends))]
        blamed += self._stuck_devices()
        if not blamed and (blamed := list(self._inversions())):
            # A circle of these ranks says the same, and names more of them.
            ends = [cause for cause in ends if cause.kind != CauseKind.OPPOSITE_ORDER]
        if self._dead and blamed:
            # The end of a rank leaves others in all sorts of places: nothing but a stack accuses another one then.
            ends = []
        # What does not complete for no rank's fault may well be a consequence, if there is any other cause.
        named = [cause for cause in (*blamed, *ends) if cause.ranks or cause.kind == CauseKind.MISMATCHED_CALL]
        yield from named or list(self._unawaited_dead_ranks()) or [*blamed, *ends] or [self._unknown()]

    def _unknown(self, among: Collection[int] = ()) -> Cause:
        """Return the cause of a hang that nothing explains. ``among``: ranks of which one may be the cause; none: any.

        Its suspects are those for whom others certainly wait; without any, those for whom others perhaps wait.
        """
        certain = {rank for rank in among or self._missed if self._missed.get(rank)}
        perhaps = set(among) or {rank for call in self._calls for rank in call.unclear}
        suspects = certain or perhaps
        waits = [call for call in self._calls if not suspects.isdisjoint({*call.missing, *call.unclear})]
        longest = max(waits or self._calls, key=lambda call: len(call.waiters))
        return Cause(CauseKind.UNKNOWN, (), longest, Confidence.LOW, tuple(sorted(suspects)))

    def _awaited(self, rank: int) -> list[SharedCall]:
        """Return the missed calls that certainly hold others up: it is their oldest pending call of all."""
        return [call for call in self._missed.get(rank, ()) if call.fronts]

    def _stuck_devices(self) -> Iterator[Cause]:
        """Yield the ranks that alone still hold a call which cannot have ended without them."""
        for call in self._sound:
            if call.is_held_alone:
                yield Cause(CauseKind.STUCK_DEVICE, call.waiters, call, Confidence.MEDIUM)

    def _dead_ranks(self) -> Iterator[Cause]:
        """Yield the dead ranks if others wait for one of them."""
        awaited = [rank for rank in sorted(self._dead) if self._awaited(rank)]
        if awaited:
            yield Cause(CauseKind.DEAD_RANK, tuple(sorted(self._dead)), self._longest(awaited[0]), Confidence.HIGH)

    def _unawaited_dead_ranks(self) -> Iterator[Cause]:
        """Yield the dead ranks: where nothing shows who is waited for, they are the likeliest reason."""
        if self._dead:
            yield Cause(CauseKind.DEAD_RANK, tuple(sorted(self._dead)), None, Confidence.MEDIUM)

    def _mismatches(self) -> Iterator[Cause]:
        for call in self._calls:
            found = call if call.sides else earlier_mismatch(self._ranks, call)
            if found is None and call.is_complete:
                found = later_mismatch(self._ranks, call)
            if found is not None:
                largest, others = found.sides[0][1], [rank for _, side in found.sides[1:] for rank in side]
                # A majority is a hint and no proof: the many may have made the wrong call together.
                named = tuple(others) if len(others) == 1 and len(largest) >= _MANY else ()
                yield Cause(CauseKind.MISMATCHED_CALL, named, found, Confidence.LOW, tuple(sorted((*largest, *others))))

    def _of_idle_ranks(self, *, has_other_ends: bool) -> Iterator[Cause]:
        """Yield the ranks whose host is elsewhere: they have nothing pending, and others wait for them."""
        idle = [rank for rank, calls in self._ranks.items() if calls.is_idle and rank not in self._dead]
        # A recorder that is off shows no call either. Then a rank that is in one is where it would be anyway.
        is_recorded = any(calls.history for calls in self._ranks.values())
        waiting = _NOT_TO_BLAME if is_recorded else (Place.SET_UP,)
        in_set_up = [rank for rank in idle if self._place(rank) in waiting]
        if in_set_up:
            elsewhere = [rank for rank in idle if self._place(rank) not in (*_NOT_TO_BLAME, Place.UNKNOWN)]
            unknown = [rank for rank in idle if self._place(rank) == Place.UNKNOWN]
            awaited = [rank for rank in elsewhere if self._awaited(rank)]
            named = awaited or (elsewhere if len(elsewhere) == 1 and not unknown else [])
            if named:
                yield from self._missing(named, Confidence.HIGH)
            else:
                yield Cause(CauseKind.UNKNOWN, (), None, Confidence.LOW, (*elsewhere, *unknown))
            return
        # Nothing older can hold up a wait for a rank that waits in no call itself.
        awaited = [rank for rank in idle if self._missed.get(rank)]
        if not awaited:
            return
        perhaps_idle = [rank for rank, calls in self._ranks.items() if not calls.pending and rank not in self._dead]
        is_alone = len(perhaps_idle) == 1 and not (has_other_ends or self._dead or self._ranks[idle[0]].hides_waits)
        alone = [rank for rank in awaited if is_alone and self._awaited(rank) and not self._may_set_up(rank)]
        alone = [rank for rank in alone if self._is_begun(rank) or not self._makes_pairs(rank)]
        certain = alone or [rank for rank in awaited if self._is_certain(rank)]
        if certain:
            # Of several ranks, one may hold the others up in a way that no recorder of devices shows.
            is_sure = len(certain) == 1 and not self._unread
            yield from self._missing(certain, Confidence.HIGH if is_sure else Confidence.MEDIUM)
        else:
            yield Cause(CauseKind.UNKNOWN, (), self._longest(awaited[0]), Confidence.LOW, tuple(awaited))

    def _missing(self, ranks: list[int], confidence: Confidence) -> Iterator[Cause]:
        """Yield the cause of each call in which others wait longest for some of ``ranks``."""
        by_call: dict[int, tuple[SharedCall | None, list[int]]] = {}
        for rank in ranks:
            call = self._longest(rank)
            by_call.setdefault(id(call), (call, []))[1].append(rank)
        for call, missing in by_call.values():
            yield Cause(CauseKind.MISSING_RANK, tuple(missing), call, confidence)

    def _is_certain(self, rank: int) -> bool:
        """Return whether nothing that recorders do not show can be what an idle rank waits for."""
        if self._place(rank) in (Place.USER_CODE, Place.DATA, Place.TEAR_DOWN):
            return True
        # It may wait for a dead rank in a way that no recorder shows, or in a call that its own recorder hides.
        if self._dead or self._ranks[rank].hides_waits or self._may_set_up(rank):
            return False
        return self._has_all_communicators(rank) or self._comes_to_known_calls(rank)

    def _comes_to_known_calls(self, rank: int) -> bool:
        """Return whether a rank makes the awaited call next: it has made it before from where it is, or all long since.

        The ranks of a program use as many groups as each other. One that has used fewer may come to a new one here.
        """
        calls = self._ranks[rank]
        waiters = {waiter for call in self._missed[rank] for waiter in call.waiters}
        if any(len(self._ranks[waiter].used_groups) > len(calls.used_groups) for waiter in waiters):
            return False
        if len(calls.history) < _SHORT_HISTORY:
            groups = {group for group, seq in calls.arrived.items() if seq >= _LONG_SEQUENCE}
            return any(call.group in groups for call in self._missed[rank])
        known = known_next_calls(calls.history)
        return any(self._is_answered_by(one, rank, call) for one in known for call in self._missed[rank])

    def _has_all_communicators(self, rank: int) -> bool:
        """Return whether a rank's dump names all groups to which it belongs, and the program is beyond its start.

        In a group with messages that are in no batch, each pair makes another communicator when it first needs one.
        """
        calls = self._ranks[rank]
        own = {group for group in self._groups if rank in group[1]}
        return bool(own) and own <= calls.ready and not self._makes_pairs(rank) and self._is_begun(rank)

    def _is_begun(self, rank: int) -> bool:
        """Return whether a rank is beyond the start of the program, in which its communicators are made."""
        return sum(self._ranks[rank].arrived.values()) >= _FIRST_CALLS

    def _makes_pairs(self, rank: int) -> bool:
        """Return whether a rank is in a group in which each pair makes a communicator for its first message."""
        return any(rank in group[1] for group in self._of_pairs)

    def _may_set_up(self, rank: int) -> bool:
        """Return whether a rank may wait for a communicator that is being made: it has fewer kinds of groups."""
        waiters = {waiter for call in self._missed[rank] for waiter in call.waiters}
        return any(not self._ranks[waiter].kinds <= self._ranks[rank].kinds for waiter in waiters)

    def _is_answered_by(self, made: tuple[GroupKey, str], rank: int, call: SharedCall) -> bool:
        """Return whether ``made`` of ``rank``, a call by group and signature, is the one for which others wait."""
        group, signature = made
        if group != call.group:
            return False
        if call.seq:
            theirs = (self._ranks[waiter].at.get((group, call.seq)) for waiter in call.waiters)
            return any(one is not None and one.signature == signature for one in theirs)
        own = group[1].index(rank)
        # A dump may be of a rank that its own group does not name.
        peers = [group[1].index(waiter) for waiter in call.waiters if waiter in group[1]]
        wanted = {text for peer in peers for text in (f"send {own}->{peer}", f"recv {own}<-{peer}")}
        return not wanted.isdisjoint(part.rpartition(" x ")[2] for part in signature.split(" + "))

    def _place(self, rank: int) -> Place:
        return self._places.get(rank, Place.UNKNOWN)

    def _longest(self, rank: int) -> SharedCall | None:
        """Return the call in which most ranks wait for ``rank``."""
        return max(self._missed.get(rank, ()), key=lambda call: (len(call.waiters), -call.seq), default=None)

    def _of_ends(self) -> Iterator[Cause]:
        """Yield the circles of ranks, and the calls that all have made, at which the edges end."""
        for end in WaitForGraph(self._nodes, self._sound).ends():
            yield from self._of_end(end)

    def _of_end(self, end: GraphPart) -> Iterator[Cause]:
        if not end.calls:
            yield from self._of_unread([rank for rank in end.ranks if rank in self._unread])
        elif end.is_circle:
            yield self._circle(end)
        elif end.calls[0].is_complete and end.calls[0].fronts and not end.calls[0].is_held_alone:
            yield self._incomplete(end.calls[0])

    def _of_unread(self, ranks: list[int]) -> Iterator[Cause]:
        """Yield the ranks without a dump at which the edges end. Only a stack shows that such a rank is elsewhere."""
        unclear = [call for call in self._calls if call.fronts and set(ranks) & set(call.unclear)]
        longest = max(unclear, key=lambda call: len(call.fronts), default=None)
        places = (Place.USER_CODE, Place.DATA, Place.TEAR_DOWN)
        elsewhere = tuple(rank for rank in ranks if self._place(rank) in places)
        if longest is None:
            return
        if elsewhere:
            yield Cause(CauseKind.MISSING_RANK, elsewhere, longest, Confidence.MEDIUM)
        else:
            yield Cause(CauseKind.UNKNOWN, (), longest, Confidence.LOW, tuple(ranks))

    def _incomplete(self, call: SharedCall) -> Cause:
        """Return the cause of a call that all have made and nothing older holds up."""
        if call.group in self._guessed:
            return Cause(CauseKind.UNKNOWN, (), call, Confidence.LOW)
        if call.unstarted:
            return Cause(CauseKind.STUCK_DEVICE, call.unstarted, call, Confidence.MEDIUM)
        launching = {rank for rank in call.waiters if self._place(rank) == Place.LAUNCH}
        inside = tuple(sorted({*call.inside, *launching}))
        if inside and len(inside) < len(call.group[1]):
            return Cause(CauseKind.INSIDE_CALL, inside, call, Confidence.MEDIUM)
        return Cause(CauseKind.GPU_OR_NETWORK, (), call, Confidence.MEDIUM)

    def _circle(self, part: GraphPart) -> Cause:
        """Return the cause of ranks that wait for each other."""
        inside = set(part.ranks)
        is_shown = all(call.is_counted and not call.unclear for call in part.calls)
        if not is_shown or not inside.isdisjoint(self._unread):
            return self._unknown(part.ranks)
        counts = {
            rank: sum(len(inside.intersection(call.fronts) - {rank}) for call in part.calls if rank in call.missing)
            for rank in part.ranks
        }
        most = max(counts.values())
        # Without a missing call, each rank has made all of them, and begins with one that is not another one's turn.
        first = min(rank for rank in part.ranks if counts[rank] == most)
        call = max(part.calls, key=lambda one: len(one.fronts) if first in (one.missing if most else one.behind) else 0)
        circle = circle_through(first, part.calls, inside)
        return Cause(CauseKind.OPPOSITE_ORDER, tuple(sorted(circle)), call, Confidence.MEDIUM)

    def _inversions(self) -> Iterator[Cause]:
        """Yield the collectives of two groups that ranks have made in opposite orders, and that are pending."""
        found = [call for call in self._sound if call.seq and call.fronts]
        for i, first in enumerate(found):
            for second in found[i + 1 :]:
                if first.group == second.group or first.unclear or second.unclear:
                    continue
                one = [rank for rank in first.fronts if self._has_before(rank, first, second)]
                other = [rank for rank in second.fronts if self._has_before(rank, second, first)]
                if one and other:
                    both = tuple(sorted((*one, *other)))
                    fewer = min(one, other, key=len)
                    named = both if len(one) == len(other) else tuple(sorted(fewer))
                    yield Cause(CauseKind.OPPOSITE_ORDER, named, first, Confidence.MEDIUM, both)

    def _has_before(self, rank: int, first: SharedCall, second: SharedCall) -> bool:
        calls = self._ranks[rank].at
        a, b = calls.get((first.group, first.seq)), calls.get((second.group, second.seq))
        return a is not None and b is not None and a.order < b.order and self._ranks[rank].front is a
