"""Tells, of the ranks that hold a part of the parameters, which hold other values than the others.

Of each part

    odd ranks = all but those that share the hash of more than half of the ranks which report the part

and without such a majority, as with two replicas, all that report it. A rank that reports no hash of a part is not
compared there.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from holdfast_proto.v1 import store_pb2 as store


@dataclass(frozen=True)
class Difference:
    """A part that its holders do not hold alike."""

    part: str
    odd: tuple[int, ...]
    has_majority: bool
    equal_step: int | None = None
    """Newest step in which they were seen to hold it alike, if nothing else shows that they must."""


def by_part(hashes: Iterable[store.ReplicaHashes]) -> Mapping[str, Sequence[store.ReplicaHashes]]:
    """Return the sides of each part: one for each hash."""
    sides: dict[str, list[store.ReplicaHashes]] = {}
    for side in hashes:
        sides.setdefault(side.part, []).append(side)
    return sides


def difference(part: str, sides: Sequence[Sequence[int]], equal_step: int | None = None) -> Difference:
    """Return the difference of a part from the ranks on each of its sides, of which there are at least two."""
    largest = max(sides, key=len)
    has_majority = 2 * len(largest) > sum(map(len, sides))
    odd = (rank for side in sides if side is not largest or not has_majority for rank in side)
    return Difference(part, tuple(odd), has_majority, equal_step)
