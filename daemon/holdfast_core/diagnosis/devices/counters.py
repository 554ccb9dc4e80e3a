"""Names ranks by the counters of NCCL's recorders, without a single call: what torch up to 2.13 shows of a live rank.

NCCL counts the collectives and the messages of a group apart, and shows the number of whichever came last
(``ProcessGroupNCCL::workEnqueue``). So numbers of two ranks are compared only where they agree: all that wait in a
group have completed the same number, and the others have completed just that, and made nothing since. Such a rank has
nothing pending in any of its groups, and is behind in each of them in which others wait.
"""

from collections.abc import Iterable, Iterator, Mapping

from holdfast_core.diagnosis.devices.causes import Cause, CauseKind, Confidence
from holdfast_core.diagnosis.wait_for_graph import GroupKey, SharedCall
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import recorder_pb2 as recorder


def dump_of_counters(groups: Iterable[common.GroupProgress]) -> recorder.RecorderDump:
    """Return the counters of a rank as a dump without calls."""
    counted = [group for group in groups if group.source == common.RECORDER_SOURCE_NCCL]
    return recorder.RecorderDump(
        groups=[
            recorder.RecordedGroup(
                name=group.group,
                description=group.description,
                member_runs=group.member_runs,
                has_status=True,
                last_enqueued=group.enqueued or -1,
                last_started=group.started or -1,
                last_completed=group.completed or -1,
            )
            for group in counted
        ]
    )


def causes_by_counters(
    dumps: Mapping[int, recorder.RecorderDump], keys: Mapping[int, list[GroupKey]]
) -> Iterator[Cause]:
    """Yield the ranks that have come to no call in which others wait. ``keys``: for each rank, those of its groups."""
    made: dict[GroupKey, dict[int, tuple[int, int]]] = {}
    busy = {rank for rank, dump in dumps.items() if dump.has_unnamed_status}  # it may wait there
    for rank, dump in dumps.items():
        for key, group in zip(keys[rank], dump.groups, strict=True):
            if group.has_status:
                made.setdefault(key, {})[rank] = group.last_enqueued, group.last_completed
                busy.update([rank] if group.last_enqueued != group.last_completed else [])
    waited_in = {key: numbers for key, numbers in made.items() if not busy.isdisjoint(_waiters(numbers))}
    calls = {key: call for key, numbers in waited_in.items() if (call := _shared_call(key, numbers)) is not None}
    behind = {rank for call in calls.values() for rank in call.unclear}
    used = {rank: sum(rank in numbers for numbers in made.values()) for rank in dumps}
    most = max((used[rank] for call in calls.values() for rank in call.waiters), default=0)
    # One that has used fewer groups may wait for a communicator that is being made.
    idle = [rank for rank in sorted(behind - busy) if used[rank] >= most]
    named = [rank for rank in idle if all(_is_behind(rank, key, calls) for key in waited_in)]
    if named:
        longest = max((j for j in calls.values() if named[0] in j.unclear), key=lambda call: len(call.waiters))
        yield Cause(CauseKind.MISSING_RANK, tuple(named), longest, Confidence.LOW)


def _is_behind(rank: int, key: GroupKey, calls: Mapping[GroupKey, SharedCall]) -> bool:
    return rank not in key[1] or (key in calls and rank in calls[key].unclear)


def _waiters(numbers: Mapping[int, tuple[int, int]]) -> list[int]:
    return sorted(rank for rank, (enqueued, completed) in numbers.items() if enqueued != completed)


def _shared_call(key: GroupKey, numbers: Mapping[int, tuple[int, int]]) -> SharedCall | None:
    """Return the call of a group in which members wait for others; None: its numbers cannot be compared."""
    waiters = _waiters(numbers)
    done = {numbers[rank][1] for rank in waiters}
    others = {numbers[rank] for rank in numbers if rank not in waiters}
    newest = max(done)
    if len(done) > 1 or others != {(newest, newest)} or numbers.keys() != set(key[1]):
        return None
    # Not certain: it may be a message, of which another rank need not make any.
    missing = tuple(rank for rank in key[1] if rank not in waiters)
    return SharedCall(key, max(newest, 0) + 1, "", tuple(waiters), unclear=missing)
