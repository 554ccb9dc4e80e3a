"""Seeing through a stale completion count.

Gloo finishes collectives on several threads, each of which writes its own seq as the newest completed: the
one that writes last may be an older one, and the status then names an old seq until the next collective.
Whether an entry of the full dump is retired is reliable, but a full dump is too dear for every poll.
"""

from collections.abc import Iterable
from typing import Any

_SETTLED_AFTER_POLLS = 3


class Settling:
    """One group's completions: what the status says, corrected once it has not moved for a few polls.

    Seqs are those of collectives alone.
    """

    def __init__(self) -> None:
        self._status = (0, 0)
        self._unchanged_polls = 0
        self._next_check = _SETTLED_AFTER_POLLS
        self.completed = 0
        """Newest seq known to be completed; never falls."""

    def observe(self, enqueued: int, completed: int) -> bool:
        """Take a poll's status; return whether a full dump should tell if something is really unfinished.

        It should when the status has shown the same unfinished call for some polls, then ever more rarely.
        """
        if (enqueued, completed) != self._status:
            self._status = (enqueued, completed)
            self._unchanged_polls = 0
            self._next_check = _SETTLED_AFTER_POLLS
        self.completed = max(self.completed, completed)
        self._unchanged_polls += 1
        if self.completed >= enqueued or self._unchanged_polls < self._next_check:
            return False
        self._next_check = 2 * self._unchanged_polls
        return True

    def correct(self, entries: Iterable[dict[str, Any]]) -> None:
        """Take the group's collectives in a full dump, oldest first."""
        newest = 0
        for entry in entries:
            if not entry["retired"]:
                break
            newest = entry["collective_seq_id"]
        self.completed = max(self.completed, newest)
