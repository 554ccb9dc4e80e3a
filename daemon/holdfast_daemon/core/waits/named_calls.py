"""Calls by their names in the ranks' recorders: have all members of a group entered the same call?"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from holdfast_daemon.core.waits.operations import agreed, has_equal_inputs, operation
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store

_UNORDERED = ("send", "recv", "coalesced")
"""First words of the operations that have no number of their own in a group's sequence."""

Signature = tuple[str, str, str]
"""Operation, sizes, data types; the last two are empty where ranks may differ in them."""

GroupId = tuple[str, int, int]
"""Name, first member, number of members: processes use one name for groups of different members."""


@dataclass(frozen=True)
class MismatchedCall:
    """Ranks in different collectives at one sequence number of a group."""

    group: str
    seq: int
    sides: tuple[tuple[Signature, tuple[int, ...]], ...]
    """Each call that was made there and the ranks that made it, the most frequent first."""


def mismatched_calls(ranks: Mapping[int, store.RankState]) -> Iterator[MismatchedCall]:
    """Yield the mismatched calls of all groups, by group and seq."""
    made: dict[tuple[GroupId, int], dict[str, tuple[Signature, list[int]]]] = {}
    for number in sorted(ranks):
        rank = ranks[number]
        if not rank.pending:
            continue
        groups = {group.group: group_id(group) for group in rank.progress.groups if group.members}
        for call in rank.pending:
            if call.group in groups and not operation(call.op).startswith(_UNORDERED):
                sides = made.setdefault((groups[call.group], call.seq), {})
                sides.setdefault(agreed(call.op, call.sizes, call.dtypes), (_signature(call), []))[1].append(number)
    for ((name, _, _), seq), sides in sorted(made.items(), key=lambda item: item[0]):
        if len(sides) > 1:
            ordered = sorted(sides.values(), key=lambda side: -len(side[1]))
            yield MismatchedCall(name, seq, tuple((signature, tuple(numbers)) for signature, numbers in ordered))


def group_id(group: common.GroupProgress) -> GroupId:
    """Return what identifies a group that has members."""
    return group.group, group.members[0], len(group.members)


def _signature(call: common.PendingCall) -> Signature:
    return (call.op, call.sizes, call.dtypes) if has_equal_inputs(call.op) else (call.op, "", "")
