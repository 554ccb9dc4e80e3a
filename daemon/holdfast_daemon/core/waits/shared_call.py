"""The nodes of the wait-for graph besides the ranks: calls, as all that take part in them see them together."""

from collections.abc import Sequence
from dataclasses import dataclass

GroupKey = tuple[str, tuple[int, ...]]
"""Name and members. Two processes may use one name for different groups; ids differ from rank to rank."""

COLLECTIVE = "collective"
SEND = "send"
RECV = "recv"


@dataclass(frozen=True)
class SharedCall:
    """One collective or message that is pending on some rank, or one pending batch of messages.

    Ranks wait for it, and it waits for ranks. How certain that is, each field says: readers of counters on hosts and of
    recorders on devices fill in what they know.
    """

    group: GroupKey
    """Of a message on hosts, the rank that waits and its peer."""
    seq: int
    """Number of the collective in its group, or of the message between two hosts; 0: it has none that both share."""
    op: str
    waiters: tuple[int, ...]
    """Ranks on which it is pending; on devices those of which it is the oldest pending call of the group. Ascending."""
    fronts: tuple[int, ...] = ()
    """Those of them that it certainly holds up. Others may wait for something older first, or run on."""
    missing: tuple[int, ...] = ()
    """Members that have certainly not made it, or are dead."""
    unclear: tuple[int, ...] = ()
    """Members of which nothing shows whether they have made it."""
    sides: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Different calls that were made under this number, and by whom; the most frequent first. Empty if all agree."""
    behind: tuple[int, ...] = ()
    """Members that have made it after another call that is still pending: a waiter too, or the other side."""
    inside: tuple[int, ...] = ()
    """Members whose host has not returned from making it, and that have nothing older pending."""
    unstarted: tuple[int, ...] = ()
    """Members whose device has not come to it, although nothing older is pending, while that of others has."""

    is_held_alone: bool = False
    """Whether one member alone still holds it, although it ends nowhere before that member has taken part."""

    is_counted: bool = True
    """Whether sends and receives were paired by number. If a ring has lost some, they are paired as pending ones."""
    peers: tuple[int, ...] = ()
    """Other sides of a call of transfers."""

    @property
    def parties(self) -> tuple[int, ...]:
        """Ranks that take part in it: the members of the group, or both sides of transfers. Ascending for these."""
        return self.group[1] if self.seq else tuple(sorted({*self.waiters, *self.peers}))

    @property
    def is_complete(self) -> bool:
        """Whether all members have made it, all the same, and it is the oldest pending call of each of them."""
        return not (self.missing or self.unclear or self.sides or self.behind)

    @property
    def awaited(self) -> Sequence[int]:
        """Ranks to which the graph leads on from here."""
        return () if self.sides else (*self.missing, *self.unclear) or self.behind
