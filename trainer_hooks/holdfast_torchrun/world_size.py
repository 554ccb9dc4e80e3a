"""When a world forms with fewer nodes than the job should have, and when a smaller world takes further nodes.

Both need patience: a restart with another number of ranks costs more than a short wait. The times are those of this
node. Only the first member of a world acts on them, so the nodes need not agree.
"""

from collections.abc import Collection, Hashable

from holdfast_proto.v1.meeting_pb2 import MeetingMember
from holdfast_torchrun.meeting import Sight, further_nodes, next_members
from holdfast_torchrun.rendezvous_settings import RendezvousSettings, say


class WorldSize:
    """The size of the worlds of one torchrun. All times are in seconds of one monotonic clock."""

    def __init__(self, settings: RendezvousSettings) -> None:
        self._settings = settings
        self._size = settings.nodes
        """Nodes of the newest world that this torchrun was part of."""
        self._missing = Waits()
        self._further = Waits()

    def members_to_form(self, sight: Sight, now_s: float, *, is_steady: bool) -> list[MeetingMember] | None:
        """Return the members of the world that forms now, by group rank; None: none does.

        A world loses nodes only after the same ones have been missing for ``resize_after_s``.
        """
        members = None
        if sight.is_whole:  # if not, another node is the first: see reading_plan.py
            members = next_members(sight, self._settings.nodes, is_steady=is_steady, fewest=self._settings.shrink_to)
        shrinks = members is not None and sight.is_alive and len(members) < len(sight.members)
        waited_s = self._missing.longest_s([frozenset(sight.lost)] if shrinks else [], now_s)
        return None if shrinks and waited_s < self._settings.resize_after_s else members

    def may_grow(self, sight: Sight | None, process: str, now_s: float) -> bool:
        """Whether this torchrun starts the restart of a smaller world with more nodes. None: Redis cannot be used.

        True once a further node has waited for ``resize_after_s``, as far as the first member has seen it.
        """
        waits: list[Hashable] = []
        if sight is not None:
            waits += [(one.process, sight.round) for one in further_nodes(sight, process, self._settings.nodes)]
        waited_s = self._further.longest_s(waits, now_s)
        return bool(waits) and waited_s >= self._settings.resize_after_s

    def enter(self, size: int) -> None:
        """Learn the number of nodes of the world that has just formed, and show the user a change."""
        run, nodes = self._settings.run, self._settings.nodes
        if size < self._size:
            say(
                f"run {run} continues with {size} of {nodes} nodes: none came within"
                f" {self._settings.resize_after_s:g} s"
            )
        elif size > self._size:
            say(f"run {run} continues with {size} of {nodes} nodes: further ones have come")
        self._size = size


class Waits:
    """How long each of several things has been seen without pause."""

    def __init__(self) -> None:
        self._since_s: dict[Hashable, float] = {}

    def longest_s(self, seen: Collection[Hashable], now_s: float) -> float:
        """Return the seconds since when the oldest of what is seen now has been seen in each call; 0: nothing is."""
        self._since_s = {one: self._since_s.get(one, now_s) for one in seen}
        return now_s - min(self._since_s.values(), default=now_s)
