"""The wait-for relation seen from the ranks that are waited for."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from holdfast_daemon.core.waits.meeting import Meeting, Waiter

Wait = tuple[Meeting, Waiter, int]
"""A meeting, a rank that waits there, and the rank that it waits for."""


class Awaited:
    """An index from each rank to the meetings in which others wait for it."""

    def __init__(self, meetings: Iterable[Meeting]) -> None:
        self._meetings_of: dict[int, list[Meeting]] = {}
        for meeting in meetings:
            newest = meeting.waiters[0].enqueued
            for rank, arrived in meeting.arrived.items():
                if arrived < newest:
                    self._meetings_of.setdefault(rank, []).append(meeting)

    @property
    def ranks(self) -> Iterable[int]:
        """All ranks that others wait for."""
        return self._meetings_of.keys()

    def meetings_for(self, rank: int) -> list[Meeting]:
        """Return the meetings in which others wait for ``rank``: first the one in which a rank has waited longest.

        That is the call that ``rank`` missed first, because the others came to later calls only after it. Sends come
        last: who has sent may run on.
        """
        return sorted(
            self._meetings_of.get(rank, ()),
            key=lambda meeting: (not meeting.strong, -max(w.stalled_s for w in meeting.waiters_for(rank))),
        )

    def direct(self, rank: int) -> Iterator[Wait]:
        """Yield the waits for ``rank`` itself, in the order of ``meetings_for``."""
        for meeting in self.meetings_for(rank):
            for waiter in meeting.waiters_for(rank):
                yield meeting, waiter, rank

    def direct_count(self, rank: int) -> int:
        """Return the number of waits for ``rank`` itself."""
        return sum(1 for meeting in self._meetings_of.get(rank, ()) for _ in meeting.waiters_for(rank))

    def towards(self, roots: Sequence[int]) -> Iterator[Wait]:
        """Yield one wait of each rank that waits for ``roots``, directly or through others; the nearest first."""
        reached = set(roots)
        queue = deque(roots)
        passed: dict[int, int] = {}
        while queue:
            awaited = queue.popleft()
            for meeting in self._meetings_of.get(awaited, ()):
                # Waiters are sorted by seq, newest first, and each waits for all members that are behind its seq. So
                # those in front of the position that another member has led to have all been reached, and the whole
                # search looks at each waiter once, not once for each member.
                position = passed.get(id(meeting), 0)
                for waiter in islice(meeting.waiters, position, None):
                    if waiter.enqueued <= meeting.arrived[awaited]:
                        break
                    position += 1
                    if waiter.rank not in reached:
                        reached.add(waiter.rank)
                        queue.append(waiter.rank)
                        yield meeting, waiter, awaited
                passed[id(meeting)] = position
