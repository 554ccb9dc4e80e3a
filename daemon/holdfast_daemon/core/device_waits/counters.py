"""Names ranks by the counters of NCCL's recorders, without a single call: what torch up to 2.13 shows of a live rank.

NCCL counts the collectives and the messages of a group apart, and shows the number of whichever came last
(``ProcessGroupNCCL::workEnqueue``). So numbers of two ranks are compared only where they agree: all that wait in a
group have completed the same number, and the others have completed just that, and made nothing since. Such a rank has
nothing pending in any of its groups, and is behind in each of them in which others wait.
"""

from collections.abc import Iterable, Iterator, Mapping

from holdfast_daemon.core.device_waits.calls import GroupKey
from holdfast_daemon.core.device_waits.causes import Cause, Confidence, Kind
from holdfast_daemon.core.device_waits.joints import Joint
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
                members=group.members,
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
    joints = {key: joint for key, numbers in waited_in.items() if (joint := _joint(key, numbers)) is not None}
    behind = {rank for joint in joints.values() for rank in joint.unclear}
    used = {rank: sum(rank in numbers for numbers in made.values()) for rank in dumps}
    most = max((used[rank] for joint in joints.values() for rank in joint.waiters), default=0)
    # One that has used fewer groups may wait for a communicator that is being made.
    idle = [rank for rank in sorted(behind - busy) if used[rank] >= most]
    named = [rank for rank in idle if all(_is_behind(rank, key, joints) for key in waited_in)]
    if named:
        longest = max((j for j in joints.values() if named[0] in j.unclear), key=lambda joint: len(joint.waiters))
        yield Cause(Kind.MISSING_RANK, tuple(named), longest, Confidence.LOW)


def _is_behind(rank: int, key: GroupKey, joints: Mapping[GroupKey, Joint]) -> bool:
    return rank not in key[1] or (key in joints and rank in joints[key].unclear)


def _waiters(numbers: Mapping[int, tuple[int, int]]) -> list[int]:
    return sorted(rank for rank, (enqueued, completed) in numbers.items() if enqueued != completed)


def _joint(key: GroupKey, numbers: Mapping[int, tuple[int, int]]) -> Joint | None:
    """Return the call of a group in which members wait for others; None: its numbers cannot be compared."""
    waiters = _waiters(numbers)
    done = {numbers[rank][1] for rank in waiters}
    others = {numbers[rank] for rank in numbers if rank not in waiters}
    newest = max(done)
    if len(done) > 1 or others != {(newest, newest)} or numbers.keys() != set(key[1]):
        return None
    # Not certain: it may be a message, of which another rank need not make any.
    missing = tuple(rank for rank in key[1] if rank not in waiters)
    return Joint(key, max(newest, 0) + 1, "", tuple(waiters), unclear=missing)
