"""Learns which group an id in a backend's own recorder means.

Torch's hook numbers its groups in the order in which it is attached to them, and keeps the number to itself
(``next_pg_id`` in FlightRecorderHook.cpp of torch 2.15). The status has ids alone, the configuration names alone. Only
an entry has both. So the calls in flight are asked for while an id is unknown, at longer and longer intervals.
"""

from collections.abc import Mapping

from holdfast_hooks.progress.recorders.recorder import BackendRecorder

_MOST_CALLS = 200
"""Calls of a recorder that never completes one, up to which it may be asked: all of them count as in flight."""


class GroupIds:
    """Names the ids of one recorder. Reporter thread only."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        """Id -> name of its group. Ids of groups that are gone stay, as they do in the recorder."""
        self._met: set[str] = set()
        self._polls = 0
        self._gap = 1
        self._next = 0

    def learn(self, recorder: BackendRecorder, numbers: Mapping[str, tuple[int, int, int]]) -> None:
        """Ask for the names of unknown ids if it is time. Call it only when a status may be read.

        ``numbers``: id -> newest enqueued, started and completed number. Raises what a dump raises.
        """
        self._polls += 1
        if not self._met >= numbers.keys():
            self._met.update(numbers)
            self._gap, self._next = 1, self._polls
        if self._polls < self._next or numbers.keys() <= self.names.keys() or _is_costly(numbers):
            return
        self._next, self._gap = self._polls + self._gap, 2 * self._gap
        self.names.update(recorder.names_in_flight())


def _is_costly(numbers: Mapping[str, tuple[int, int, int]]) -> bool:
    """Return whether the whole ring would come back, because its calls never complete: some 20 us a call."""
    is_ended_at_issue = not any(completed for _, _, completed in numbers.values())
    return is_ended_at_issue and sum(enqueued for enqueued, _, _ in numbers.values()) > _MOST_CALLS
