"""Finds dumps that contradict each other. They were not taken at one time, or a call ended on some members only.

Most collectives end nowhere before all members have taken part. So where one member has completed such a call, a dump
of another one that has not even made it is older. If it has made the call and not completed it, then either its dump
is older, or the end of the call has not reached its device. Such a dump says nothing about the present moment, unless
it is the only one: if it shows every call that others have completed, and it alone still holds one of them, no older
dump explains that. A hang has lasted for minutes when dumps are taken, and no host is minutes ahead of its device.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from holdfast_core.diagnosis.devices.rank_calls import Call, RankCalls
from holdfast_core.diagnosis.operations import ends_together
from holdfast_core.diagnosis.wait_for_graph import GroupKey


@dataclass(frozen=True)
class Contradiction:
    """A rank whose dump does not fit to those of others."""

    rank: int
    group: GroupKey
    seq: int
    """Number of a call that others have completed."""
    others: tuple[int, ...]
    is_made: bool
    """Whether the rank has made the call, but not completed it."""


def contradictions(ranks: Mapping[int, RankCalls], dead: Collection[int]) -> Iterator[Contradiction]:
    """Yield a contradiction for each living rank whose dump has one, and drop pending calls that only a status shows.

    The watchdog updates the status and may be stuck. Then it shows calls as pending that others show to be over.
    """
    over: dict[GroupKey, int] = {}
    for rank, calls in ranks.items():
        for group, seq in calls.over.items():
            if rank in group[1]:
                over[group] = max(seq, over.get(group, 0))
    odd: dict[int, tuple[GroupKey, bool]] = {}
    for rank, calls in ranks.items():
        _drop_lost(calls, over)
        found = None if rank in dead else _of_rank(rank, calls, over)
        if found is not None and not held_alone(rank, ranks, dead):
            odd[rank] = found
    signatures = _signatures(ranks) if odd else {}
    # Once for each group: with a thousand members, even a look into a dictionary of groups takes its time.
    others = {
        group: tuple(other for other in group[1] if other in ranks and ranks[other].over.get(group) == over[group])
        for group in {group for group, _ in odd.values()}
    }
    for rank, (group, is_made) in odd.items():
        if _made_other_calls(ranks[rank], group, signatures):
            continue  # a number means different calls here
        yield Contradiction(rank, group, over[group], others[group], is_made)


def held_alone(rank: int, ranks: Mapping[int, RankCalls], dead: Collection[int]) -> tuple[GroupKey, int] | None:
    """Return the oldest call of a rank that it has made and that is over on all other members; None: there is none.

    They cannot have finished without it. So it waits for no rank: its device, its stream or its watchdog is stuck.
    """
    calls = ranks[rank]
    found = next((call for call in calls.pending if _is_over_elsewhere(call, ranks, dead)), None)
    if found is None or any(
        calls.arrived.get(group, 0) < max(ranks[other].over.get(group, 0) for other in group[1] if other in ranks)
        for group in calls.arrived
    ):
        return None
    return found.group, found.seq


def _is_over_elsewhere(call: Call, ranks: Mapping[int, RankCalls], dead: Collection[int]) -> bool:
    others = [member for member in call.group[1] if member != call.rank]
    is_followed = call.order >= 0 and not (call.is_p2p or call.inside)
    if not (is_followed and ends_together(call.op) and all(other in ranks and other not in dead for other in others)):
        return False
    same = [ranks[other].at.get((call.group, call.seq)) for other in others]
    # One other alone may have made another call, if it does not show it. Of several, some would wait with this one.
    is_shown = len(others) > 1 or (others and same[0] is not None)
    made = {one.signature for one in same if one is not None} | {call.signature}
    differ = len(made - {""}) > 1
    return bool(is_shown) and not differ and all(ranks[other].has_completed(call.group, call.seq) for other in others)


def _signatures(ranks: Mapping[int, RankCalls]) -> dict[tuple[GroupKey, int], set[str]]:
    """Return the different calls that ranks made, by group and number."""
    found: dict[tuple[GroupKey, int], set[str]] = {}
    for calls in ranks.values():
        for place, call in calls.at.items():
            if call.signature:
                found.setdefault(place, set()).add(call.signature)
    return found


def _made_other_calls(
    calls: RankCalls, group: GroupKey, signatures: Mapping[tuple[GroupKey, int], Collection[str]]
) -> bool:
    """Return whether a rank made another call than others under one number of a group."""
    return any(place[0] == group and call.signature and len(signatures[place]) > 1 for place, call in calls.at.items())


def _drop_lost(calls: RankCalls, over: Mapping[GroupKey, int]) -> None:
    kept = [call for call in calls.pending if call.order >= 0 or call.seq > over.get(call.group, -1)]
    if len(kept) < len(calls.pending):
        calls.pending[:] = kept
        calls.may_hide = True
        calls.front_is_certain = False


def _of_rank(rank: int, calls: RankCalls, over: Mapping[GroupKey, int]) -> tuple[GroupKey, bool] | None:
    """Return a group in which others have completed a call that this rank has not, and whether it has made that one."""
    for group, newest in calls.arrived.items():
        if newest < over.get(group, -1) and rank in group[1]:
            return group, False
    for call in calls.pending:
        if not call.is_p2p and call.seq <= over.get(call.group, -1):
            return call.group, True
    return None
