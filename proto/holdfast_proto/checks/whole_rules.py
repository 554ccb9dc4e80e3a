"""Rules of what no single field of a message shows: each raises RefusedError, and sees only good fields."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from holdfast_proto.checks.message_checker import MessageChecker
from holdfast_proto.checks.value_rules import RefusedError
from holdfast_proto.limits import MOST_RANKS
from holdfast_proto.member_runs import flaw_of_runs, members_of, number_of_members
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import control_pb2 as control
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.recorder_pb2 import RecordedGroup, RecorderDump
from holdfast_proto.vocabulary import ENDED


def _check_event(event: store.Event) -> None:
    if event.WhichOneof("kind") is None:
        raise RefusedError("kind: it is of no kind that this version knows")


def _check_has_fault(message: "store.FaultInjected | store.FaultRefused | control.InjectFaultRequest") -> None:
    if not message.HasField("fault"):
        raise RefusedError("fault is missing")


def _check_blocked_on(blocked: common.BlockedOn) -> None:
    if blocked.next.HasField("next"):
        raise RefusedError("next has a `next`: only one thing follows another")


def _check_recorded_group(group: RecordedGroup) -> None:
    runs = group.member_runs
    if len(runs) % 3 or 0 in runs[1::3] or number_of_members(runs) > MOST_RANKS:
        raise RefusedError(f"member_runs of group {group.name!r} stand for no members, or for too many")
    members = members_of(runs)
    if len(set(members)) < len(members):
        raise RefusedError(f"member_runs of group {group.name!r} names one twice")


def _check_recorder(dump: RecorderDump) -> None:
    if sum(number_of_members(group.member_runs) for group in dump.groups) > MOST_RANKS:
        raise RefusedError("groups stand for more members than the groups of a rank have")
    newest = -1
    for call in dump.calls:
        if call.group >= len(dump.groups):
            raise RefusedError(f"calls.group names group {call.group} of {len(dump.groups)}")
        if call.order < newest:
            raise RefusedError("calls are not in order")
        newest = call.order


def _check_stacks(taken: store.StacksTaken) -> None:
    newest = max((max(thread.frames, default=-1) for rank in taken.ranks for thread in rank.threads), default=-1)
    if newest >= len(taken.frames):
        raise RefusedError(f"ranks.threads.frames names frame {newest} of {len(taken.frames)}")


def _check_size(spec: store.RunSpec) -> None:
    if spec.nodes * spec.ranks_per_node > MOST_RANKS:
        raise RefusedError(f"nodes is {spec.nodes} of {spec.ranks_per_node} ranks: more than {MOST_RANKS} ranks")


def _check_nodes(record: store.CoordinatorState) -> None:
    if len(set(record.nodes)) < len(record.nodes):
        raise RefusedError("nodes names one twice")
    if not record.nodes and record.phase not in {store.RUN_PHASE_WAITING, *ENDED}:
        raise RefusedError(f"nodes is empty in phase {store.RunPhase.Name(record.phase)}")


def _check_gpu(gpu: store.GpuState) -> None:
    if not 0.0 <= gpu.utilization_sum <= gpu.utilization_samples:  # a sample is a share
        raise RefusedError(f"utilization_sum is {gpu.utilization_sum:g} of {gpu.utilization_samples} samples")


def _check_words(words: session.RankWords) -> None:
    ranks = list(words.ranks)
    if ranks != sorted(set(ranks)):
        raise RefusedError("ranks do not ascend")


_WHOLES: Mapping[str, Callable[[Any], None]] = {
    "Event": _check_event,
    "FaultInjected": _check_has_fault,
    "FaultRefused": _check_has_fault,
    "InjectFaultRequest": _check_has_fault,
    "BlockedOn": _check_blocked_on,
    "RecordedGroup": _check_recorded_group,
    "RecorderDump": _check_recorder,
    "StacksTaken": _check_stacks,
    "RunSpec": _check_size,
    "CoordinatorState": _check_nodes,
    "GpuState": _check_gpu,
    "RankWords": _check_words,
}


@lru_cache(MOST_RANKS)
def _flaw_of_members(runs: tuple[int, ...], world_size: int) -> str:
    """Return what is wrong with the members of a group. All its ranks name the same ones in every report."""
    return flaw_of_runs(runs, world_size)


def new_checker(world_size: int, **wholes: Callable[[Any], None]) -> MessageChecker:
    """Return the checker of messages of runs of ``world_size`` ranks. ``wholes``: further rules, by message."""

    def check_group(group: common.GroupProgress) -> None:
        if flaw := _flaw_of_members(tuple(group.member_runs[:]), world_size):
            raise RefusedError(f"member_runs of group {group.group!r}: {flaw}")

    return MessageChecker(world_size, {**_WHOLES, "GroupProgress": check_group, **wholes})
