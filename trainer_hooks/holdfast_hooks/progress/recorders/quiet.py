"""Finds the moments in which a device recorder's status may be read.

The recorder guards its entries with a lock, but not the tables of groups that a status is made from
(FlightRecorderDetail.hpp: ``getPgConfigJson`` and ``getPgStatusJson`` of torch 2.13 to 2.15). A row is added to them at
two moments only: when a communicator is made, and at the first record of a group. A status that is read at that moment
may crash the process. So the hooks read none

* while a thread is inside the functions that make groups;
* while a rank's first point-to-point call on a device with a peer has not returned: it may make a communicator;
* while a group's first collective may not have returned. The group's own counter shows that: torch counts a call
  before it makes the communicator, and the second call shows that the first one has returned. Where there is no second
  call, the training thread must have moved to another step or phase.

A call that begins after this look cannot add a row during the read. A communicator takes milliseconds to make, a read
takes microseconds. A record first takes a stack with the interpreter's lock, which the read holds. A first collective
of a thread other than the training thread is the exception: nothing shows that it has not returned.
"""

from collections.abc import Callable, Collection, Hashable, Mapping

from holdfast_hooks.progress.group_making import is_making_groups


class QuietWatch:
    """Follows the first calls of each group. Reporter thread only.

    Args:
        place: returns a value that changes when the training thread moves to another step or phase.
        opening: point-to-point calls of a kind that may make a communicator, and have not returned.
    """

    def __init__(self, place: Callable[[], Hashable], opening: Collection[object]) -> None:
        self._place = place
        self._opening = opening
        self._since: dict[str, Hashable] = {}

    def is_quiet(self, calls: Mapping[str, int | None]) -> bool:
        """Return whether a status may be read now.

        ``calls``: name of each group on a device -> collectives that it has counted; None: the backend does not say.
        """
        place = self._place()
        doubtful = {name for name, count in calls.items() if count is None or count == 1}
        self._since = {name: self._since.get(name, place) for name in doubtful}
        is_settled = all(since != place for since in self._since.values())
        return is_settled and not self._opening and not is_making_groups()
