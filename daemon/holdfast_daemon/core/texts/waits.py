"""Who waits for whom in which call, with ranks that wait alike taken together."""

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast_daemon.core.naming import ranks_named
from holdfast_proto.v1 import store_pb2 as store


@dataclass(frozen=True)
class AwaitedCall:
    """A call in which others wait for one rank."""

    awaited: int
    group: str
    seq: int
    op: str
    waiters: tuple[int, ...]
    """Ranks that wait there, ascending: the first few of many."""
    number: int
    """Number of all ranks that wait there."""

    @property
    def line(self) -> str:
        """The wait in one line for people."""
        verb = "waits" if self.number == 1 else "wait"
        call = f"{self.op or 'call'} {self.seq} of {self.group}"
        return f"{ranks_named(self.waiters, self.number)} {verb} for rank {self.awaited} in {call}"


def awaited_calls(edges: Iterable[store.WaitEdge], first: Iterable[int] = ()) -> list[AwaitedCall]:
    """Return the calls of some waits: those in which ranks of ``first`` are awaited before others, else in their order.

    Waits of one call are one entry also where evidence has named the call of some of its ranks only.
    """
    calls: dict[tuple[int, str, int], list[store.WaitEdge]] = {}
    for edge in edges:
        calls.setdefault((edge.awaited, edge.group, edge.seq), []).append(edge)
    found = [_awaited_call(*call, alike) for call, alike in calls.items()]
    preferred = {rank: place for place, rank in enumerate(first)}
    return sorted(found, key=lambda call: preferred.get(call.awaited, len(preferred)))


def _awaited_call(awaited: int, group: str, seq: int, edges: list[store.WaitEdge]) -> AwaitedCall:
    waiters = tuple(sorted({edge.waiter for edge in edges}))
    number = max(len(waiters), *(edge.waiters for edge in edges))
    return AwaitedCall(awaited, group, seq, edges[0].op, waiters, number)
