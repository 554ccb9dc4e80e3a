"""Ranks that have made different groups under one number.

Torch names a group by counting: every rank has to make every group, in one order, also those that it is no member of
(``new_group``, ``_process_group_name``). A script in which each rank makes only its own group gives one name to all of
them, and their ranks look for each other under the same keys of the store. Names that torch derives from the members
(``use_local_synchronization``, ``split_group``) are no numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast_proto.v1 import store_pb2 as store

_Shape = tuple[int, int, int, int]
"""First, middle and last member, and their number. Comparing all members of all ranks would take seconds in a large
world."""


@dataclass(frozen=True)
class DifferentGroups:
    """What ranks mean by one name of a group."""

    group: str
    sides: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    """Members of a group, and the ranks that have made it; what most ranks have made comes first."""


def different_groups(ranks: Mapping[int, store.RankState]) -> DifferentGroups | None:
    """Return the first number under which ranks have made different groups; None: there is none."""
    made: dict[int, dict[_Shape, list[int]]] = {}
    members_of: dict[_Shape, tuple[int, ...]] = {}
    for number in sorted(ranks):
        progress = ranks[number].progress
        for group in (*progress.groups, *progress.device_groups):
            if group.members and group.group.isdecimal():
                shape = _shape(group.members)
                makers = made.setdefault(int(group.group), {}).setdefault(shape, [])
                if number not in makers[-1:]:  # a group may have calls on hosts and on devices
                    makers.append(number)
                if shape not in members_of:
                    members_of[shape] = tuple(group.members)
    found = next(((name, sides) for name, sides in sorted(made.items()) if len(sides) > 1), None)
    if found is None:
        return None
    name, sides = found
    by_members = ((members_of[shape], tuple(numbers)) for shape, numbers in sides.items())
    return DifferentGroups(str(name), tuple(sorted(by_members, key=lambda side: (-len(side[1]), side[0]))))


def _shape(members: Sequence[int]) -> _Shape:
    return members[0], members[len(members) // 2], members[-1], len(members)
