"""Who computed something differently in two runs of the same step, and who only got something else from others.

Ranks exchange everything in collectives and messages. So a rank whose first difference comes before any collective in
which another rank gave something else has made it itself. All other differences follow from what was received.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

MOST_GROUPS = 64
"""Most groups of ranks that a history has. A rank is in fewer, except one that sends messages to very many ranks."""
ANY_SOURCE = 1
"""Number of the group of all messages that a rank received without naming their source."""
_NEVER = -1


class Computed(NamedTuple):
    """One thing that a rank computed: its part of a collective or of a message, or a part of its state."""

    group: int
    """Number of the ranks that take part, the same on all of them; 0: this rank alone."""
    name: str


@dataclass
class Trace:
    """What a rank computed in one run of a step, in order."""

    entries: list[Computed] = field(default_factory=list)
    sums: list[int] = field(default_factory=list)
    """Sum of the bits of each entry. Any one flipped bit changes it."""

    def first_difference(self, other: "Trace") -> int | None:
        """Return the index of the first entry that is not the same in ``other``; None: all are the same."""
        same = zip(self.entries, self.sums, other.entries, other.sums, strict=False)
        for index, (entry, total, its_entry, its_total) in enumerate(same):
            if entry != its_entry or total != its_total:
                return index
        shorter = min(len(self.entries), len(other.entries))
        return None if len(self.entries) == len(other.entries) else shorter

    def name_of(self, index: int) -> str:
        """Return the name of an entry; of one after the last, that the run ended there."""
        return self.entries[index].name if index < len(self.entries) else "the calls after the last one"


class GroupHistory(NamedTuple):
    """The calls of one group on one rank, as far as two runs are compared."""

    group: int
    before: int
    """Number of its calls before this rank's first difference of all; without one, number of all."""
    first: int
    """Number of its first call in which this rank gave something else; -1: there is none."""


def history(one: Trace, other: Trace) -> list[GroupHistory]:
    """Return the history of each group in which a rank takes part, MOST_GROUPS at most."""
    first = one.first_difference(other)
    calls: dict[int, int] = {}
    before: dict[int, int] = {}
    differs: dict[int, int] = {}
    for index, entry in enumerate(one.entries):
        if entry.group == 0:
            continue
        number = calls.get(entry.group, 0)
        if first is None or index < first:
            before[entry.group] = number + 1
        elif index >= len(other.entries) or (entry, one.sums[index]) != (other.entries[index], other.sums[index]):
            differs.setdefault(entry.group, number)
        calls[entry.group] = number + 1
    known = [GroupHistory(group, before.get(group, 0), differs.get(group, _NEVER)) for group in calls]
    return known[:MOST_GROUPS]


def encode(vote: int, histories: Sequence[GroupHistory]) -> list[int]:
    """Return a rank's vote, 0 if it computed the same, and its history as whole numbers, as many for each rank."""
    numbers = [vote, *(number for one in histories for number in one)]
    return numbers + [0] * (1 + 3 * MOST_GROUPS - len(numbers))


def decode(numbers: Sequence[int]) -> tuple[int, list[GroupHistory]]:
    """Return what :func:`encode` was given."""
    triples = [GroupHistory(*numbers[start : start + 3]) for start in range(1, len(numbers), 3)]
    return numbers[0], [one for one in triples if one.group != 0]


class Culprits(NamedTuple):
    """Ranks that computed something differently."""

    ranks: tuple[int, ...]
    is_certain: bool
    """Whether they made the difference themselves; else at least one of them did."""


def culprits_of(ranks: Sequence[tuple[int, Sequence[GroupHistory]]]) -> Culprits:
    """Return the ranks that differ, and to which no other rank can have passed the difference on.

    A call counts as received when it is made, and its result may be used later. So ranks may seem to have got their
    differences from each other. Then these are returned, and are not certain.

    Args:
        ranks: of each rank in order its vote, 0 if nothing differs, and its history.
    """
    firsts: dict[int, list[tuple[int, int]]] = {}
    for rank, (_, histories) in enumerate(ranks):
        for one in histories:
            if one.first != _NEVER:
                firsts.setdefault(one.group, []).append((one.first, rank))
    earliest = {group: sorted(found)[:2] for group, found in firsts.items()}
    givers = {
        rank: next((giver for one in histories for giver in _givers(earliest, one, rank)), None)
        for rank, (vote, histories) in enumerate(ranks)
        if vote
    }
    first_of_all = [rank for rank, giver in givers.items() if giver is None]
    # What a rank got from a source that it did not name explains its difference, if any other rank made one.
    named = [rank for rank in first_of_all if not _took_from_any(ranks[rank][1])] or first_of_all
    if named or not givers:
        return Culprits(tuple(named), is_certain=True)
    return Culprits(_circle(givers), is_certain=False)


def _givers(earliest: Mapping[int, Sequence[tuple[int, int]]], one: GroupHistory, rank: int) -> list[int]:
    """Return the ranks that gave something else in a call of the group before this rank's own first difference."""
    return [other for first, other in earliest.get(one.group, ()) if other != rank and first < one.before]


def _took_from_any(histories: Sequence[GroupHistory]) -> bool:
    return any(one.group == ANY_SOURCE and one.before for one in histories)


def _circle(givers: Mapping[int, int | None]) -> tuple[int, ...]:
    """Return ranks of which each got its difference from the next. ``givers`` has a rank for each."""
    path: list[int] = []
    rank: int | None = min(givers)
    while rank is not None and rank not in path:
        path.append(rank)
        rank = givers.get(rank)
    return tuple(sorted(path[path.index(rank) :] if rank is not None else path))
