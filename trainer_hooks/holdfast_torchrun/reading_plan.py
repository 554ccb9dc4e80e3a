"""Which records a waiting node reads: those of all nodes, or of the few on which it depends. Without I/O or a clock.

If each of n waiting nodes read all records each time, Redis would send n x n of them. But only the first node forms the
next world. It reads all records each time. Each of the others watches that one, and reads all records again if it is
lost, if the world changes, and now and then for certainty. A node that begins to wait knows the first node of its last
world, or reads all records.

A node that trains hears of a restart by the bell, and reads the record of the node that rang.
"""

import random
from collections.abc import Sequence

from holdfast_proto.v1.meeting_pb2 import MeetingMember, MeetingRecord, MeetingWorld
from holdfast_torchrun.meeting import Sight, first_node, nodes_to_join

RECORDS_PER_S = 100_000.0
"""Records that all nodes of a run but the first one read in a second, for certainty: a tenth of what Redis can send."""


class ReadingPlan:
    """What one node reads. All times are in seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._watched: Sequence[MeetingMember | MeetingRecord] = ()
        """The first node, and a member of the newest world whose life decides which one that is. None: this node is the
        first, or does not know."""
        self._chosen = (0, False)
        """Number of the newest world, and whether one of its members was alive, as this node chose whom to watch."""
        self._nodes = 1
        self._next_whole_s = 0.0
        """Time from which this node reads all records for certainty."""
        self._is_unclear = False
        """Whether a bell has rung, and the record of the node that rang does not say why."""

    def begin_to_wait(self, world: MeetingWorld | None, process: str, now_s: float) -> None:
        """Watch the first member of the newest world of which this node was a part. None: there has been none.

        If there is a newer one, the first look shows it, and the next one is at all records.
        """
        members = world.members if world is not None else []
        self._watched = [member for member in members[:1] if member.process != process]
        self._chosen = (world.round, True) if world is not None else (0, False)
        self._nodes = max(len(members), 1)
        self._put_off(now_s)

    def nodes_to_read(self, now_s: float, *, waits: bool) -> list[str] | None:
        """Return the names of the nodes whose records are read now; None: all."""
        if waits and not self._watched:
            return None
        if now_s >= self._next_whole_s and (waits or self._is_unclear):
            return None
        return [one.node for one in self._watched] if waits else []

    def forget(self) -> None:
        """Read all records the next time, if this node waits."""
        self._watched = ()

    def learn(self, sight: Sight, record: MeetingRecord, now_s: float) -> None:
        """Learn what was seen. ``record``: that of this node."""
        if sight.is_whole:
            first = first_node(sight, record.nodes)
            is_other = first is not None and first.process != record.process
            self._watched = [one for one in (first, sight.witness) if one is not None] if is_other else ()
            self._chosen = (sight.round, sight.is_alive)
            self._nodes, self._is_unclear = len(sight.records), False
            self._put_off(now_s)
            return
        seen = {(one.node, one.process) for one in sight.records.values()}
        if (sight.round, sight.is_alive) != self._chosen or any(
            (one.node, one.process) not in seen for one in self._watched
        ):
            self._watched = ()
        # The bell may have been that of a node which has not heard of the newest world, rung over that of a member.
        is_member = not record.waiting or sight.round > record.round
        has_reason = nodes_to_join(sight, record.process, sight.round) > 0
        if sight.has_rung and is_member and not has_reason and not self._is_unclear:
            self._is_unclear = True
            self._put_off(now_s)

    def _put_off(self, now_s: float) -> None:
        """Let time pass until this node reads all records again: more in a larger run, and not all at one moment."""
        self._next_whole_s = now_s + self._nodes**2 / RECORDS_PER_S * random.uniform(1.0, 2.0)
