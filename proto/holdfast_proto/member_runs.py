"""The members of a process group as runs of ranks at equal distances.

Every rank tells the members of all its groups in every report. As a list, the world of ten thousand ranks takes 20 kB,
and all ranks together 200 MB. But groups are cut from a grid, so that their members lie at equal distances: a run takes
three numbers, whatever its length. Any list can be written so, in its order; one without such distances gets longer.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain

_GROUPS_REMEMBERED = 2**12
"""Different lists of members that are kept as tuples. Most groups have few members, and are expanded again at once."""


def runs_of(members: Sequence[int]) -> list[int]:
    """Return first member, distance and number of members of each run, one run after another."""
    runs: list[int] = []
    start = 0
    while start < len(members):
        end = start + 1
        distance = max(members[end] - members[start], 1) if end < len(members) else 1
        while end < len(members) and members[end] - members[end - 1] == distance:
            end += 1
        runs += (members[start], distance, end - start)
        start = end
    return runs


def members_of(runs: Iterable[int]) -> tuple[int, ...]:
    """Invert :func:`runs_of`. Equal runs give the same tuple, so that it may be compared and kept at no cost."""
    return _expanded(tuple(runs))


@lru_cache(_GROUPS_REMEMBERED)
def _expanded(runs: tuple[int, ...]) -> tuple[int, ...]:
    parts = (range(first, first + distance * count, distance) for first, distance, count in _runs(runs))
    return tuple(chain.from_iterable(parts))


def flaw_of_runs(runs: Sequence[int], world_size: int) -> str:
    """Return why ``runs`` cannot be those of a group with ascending members in a world; "" if they can.

    Nothing is expanded before this is known: three numbers can stand for any amount of memory.
    """
    if len(runs) % 3:
        return "runs of members that are cut off"
    newest = -1
    for first, distance, count in _runs(runs):
        if first <= newest or not distance or not count:
            return "members that do not ascend"
        newest = first + distance * (count - 1)
    return "" if newest < world_size else f"rank {newest} of a world of {world_size}"


def number_of_members(runs: Sequence[int]) -> int:
    """Return the number of members, without expanding the runs."""
    return sum(runs[2::3])


def _runs(flat: Iterable[int]) -> Iterator[tuple[int, int, int]]:
    numbers = iter(flat)
    return zip(numbers, numbers, numbers, strict=False)
