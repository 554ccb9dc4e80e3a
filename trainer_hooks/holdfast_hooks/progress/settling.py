"""Corrects a completed seq that is too low.

Gloo finishes collectives on several threads, and each writes its own seq as the newest completed one. If the thread
with an older seq writes last, the status shows that seq until the next collective. An entry of a full dump says
reliably whether it is retired, but a full dump costs too much for every poll.
"""

from collections.abc import Iterable
from typing import Any

_SETTLED_AFTER_POLLS = 3


class Settling:
    """Follows the completed seq of one group, and corrects it if the status has not changed for a few polls.

    Seqs count collectives only.
    """

    def __init__(self) -> None:
        self._status = (0, 0)
        self._unchanged_polls = 0
        self._next_check = _SETTLED_AFTER_POLLS
        self.completed = 0
        """Newest seq that is known to be completed; it never falls."""

    def observe(self, enqueued: int, completed: int) -> bool:
        """Note a poll's status; return whether a full dump should show if a call is really unfinished.

        It should once the status has shown the same unfinished call for some polls, and then more and more rarely.
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
        """Correct the completed seq from the group's collectives in a full dump, oldest first."""
        newest = 0
        for entry in entries:
            if not entry["retired"]:
                break
            newest = entry["collective_seq_id"]
        self.completed = max(self.completed, newest)
