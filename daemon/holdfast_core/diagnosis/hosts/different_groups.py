"""Ranks that have made different groups under one number.

Torch names a group by counting: every rank has to make every group, in one order, also those that it is no member of
(``new_group``, ``_process_group_name``). A script in which each rank makes only its own group gives one name to all of
them, and their ranks look for each other under the same keys of the store. Names that torch derives from the members
(``use_local_synchronization``, ``split_group``) are no numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast_proto.member_runs import members_of
from holdfast_proto.v1 import store_pb2 as store


@dataclass(frozen=True)
class DifferentGroups:
    """What ranks mean by one name of a group."""

    group: str
    sides: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    """Members of a group, and the ranks that have made it; what most ranks have made comes first."""


def different_groups(ranks: Mapping[int, store.RankState]) -> DifferentGroups | None:
    """Return the first number under which ranks have made different groups; None: there is none."""
    made: dict[int, dict[tuple[int, ...], list[int]]] = {}
    for number in sorted(ranks):
        progress = ranks[number].progress
        for group in (*progress.groups, *progress.device_groups):
            if group.member_runs and group.group.isdecimal():
                makers = made.setdefault(int(group.group), {}).setdefault(tuple(group.member_runs), [])
                if number not in makers[-1:]:  # a group may have calls on hosts and on devices
                    makers.append(number)
    found = next(((name, sides) for name, sides in sorted(made.items()) if len(sides) > 1), None)
    if found is None:
        return None
    name, sides = found
    by_members = ((members_of(runs), tuple(numbers)) for runs, numbers in sides.items())
    return DifferentGroups(str(name), tuple(sorted(by_members, key=lambda side: (-len(side[1]), side[0]))))
