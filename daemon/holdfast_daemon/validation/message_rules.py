"""Rules of the messages of a run: events, its spec, its leader's record and its incidents.

``message_checker.py`` checks each field by its type and name. Here is what these do not say. What the training script
reports passes as it is: a loss or a norm that is not finite is a finding, not a bad message. What agents and hooks
measure themselves must be finite.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from holdfast_core.texts.render import is_complete
from holdfast_daemon.validation.message_checker import ANY_FINITE, MessageChecker, Range, Rule, one_of
from holdfast_daemon.validation.rules import (
    LARGEST_PID,
    MOST_NODES,
    PATH_CHARACTERS,
    PHASES,
    RefusedError,
    check_fault_kind,
    check_file,
    check_id,
    check_length,
    check_line,
    check_node_name,
    check_stream_id,
    check_text,
)
from holdfast_proto.limits import (
    FINGERPRINT_BYTES,
    LOGGED_NAME_CHARACTERS,
    LONGEST_S,
    MOST_GROUPS,
    MOST_LOGGED_NAMES,
    MOST_RANKS,
    MOST_WITNESS_WORDS,
    NAME_CHARACTERS,
    WITNESS_WORDS_CHARACTERS,
)
from holdfast_proto.member_runs import members_of, number_of_members
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.recorder_pb2 import RecordedGroup, RecorderDump
from holdfast_proto.vocabulary import ENDED, MOST_BUDGET, NONFINITE_QUANTITIES, TIME_USES

_MOST_CALLS = 1024
_REPORTS_PER_RANK = 16
"""Of one number of one step on one node. A rank reports each once; sums over nodes must fit into 32 bits."""


def _text(most: int) -> Rule:
    return partial(check_text, most=most)


def _line(most: int) -> Rule:
    return partial(check_line, most=most)


_FIELDS: Sequence[tuple[Rule | None, str]] = (
    # Numbers of the training script, hashes and seeds. Some file systems say that their free space has no end.
    (None, "StepSummary.loss_sum StepSummary.validation_loss StepSummary.grad_norm StepSummary.learning_rate"),
    (None, "StepSummary.update_norm StepSummary.loss_scale Mean.sum LoggedNumber.value"),
    (None, "ReplicaHashes.hash Fault.seed RecordedCall.created_ns SnapshotMemoryRefused.free_bytes"),
    # A dump is evidence from outside: ranks that the run does not have must not cost the stacks beside it. The same is
    # true of sizes that the last line of a rank names, and of what a verdict takes from both.
    (None, "RecordedGroup.member_runs MismatchSide.members MismatchSide.peer"),
    (None, "DeviceCallDetail.suspects DeviceCallDetail.ranks"),
    (None, "RankEnd.expected_bytes RankEnd.got_bytes MismatchSide.expected_bytes MismatchSide.got_bytes"),
    # Differences of clocks, of steps and of other differences.
    (None, "ThroughputDetail.since_step"),
    (ANY_FINITE, "LateExitDetail.since_s StragglerDetail.own_s StragglerDetail.usual_s"),
    (ANY_FINITE, "ThroughputDetail.step_s ThroughputDetail.step_before_s"),
    (Range(-LONGEST_S, LONGEST_S), "Fault.duration_s"),  # a clock may jump back
    (Range(0, MOST_RANKS - 1), "BlockedOn.rank Fault.rank"),  # the fault may be refused for its rank
    (Range(0, 255), "RankExit.signal LauncherEnd.code"),
    (Range(0.0, 1.0), "Verdict.confidence_ratio"),
    (Range(0.0, 1e6), "Fault.factor RunSpec.restart_patience"),
    (Range(0.0, 1e15), "RunSpec.checkpoint_upload_bytes_per_s"),
    (Range(0, MOST_NODES), "RunSpec.nodes"),
    (Range(0, MOST_BUDGET), "LossRule.budget"),
    (Range(0, LARGEST_PID), "ThreadFrames.id"),
    (one_of(PHASES), "StepSummary.phase_s.key CoordinatorState.longest_phase_s.key"),
    (one_of(TIME_USES), "TimeUse.settled_s.key"),
    (one_of(NONFINITE_QUANTITIES), "NonFinite.quantity"),
    (check_fault_kind, "Fault.kind"),
    (check_node_name, "Event.node CoordinatorState.nodes CulpritPlace.node EndedRank.node"),
    (check_id, "Incident.id EvidenceCaptured.suspicion StacksTaken.request ProfileTaken.request"),
    (check_file, "EvidenceCaptured.files Incident.evidence"),
    (check_stream_id, "CoordinatorState.last_event_id"),
    (partial(check_length, most=FINGERPRINT_BYTES), "SamplesUsed.fingerprint"),
    (_text(NAME_CHARACTERS), "GpuFault.uuid PendingCall.group PendingCall.op KnownPause.kind RunSpec.instance"),
    (_text(NAME_CHARACTERS), "RunSpec.versions.key RunSpec.versions.value"),
    (_text(NAME_CHARACTERS), "RecorderDump.version RecordedGroup.name RecordedGroup.description"),
    (_text(NAME_CHARACTERS * 16), "StackSummary.frame RecordedCall.op RecordedCall.input_sizes RecordedCall.frame"),
    (_text(NAME_CHARACTERS * 16), "RecordedCall.output_sizes RecordedCall.dtypes"),
    # Lines that people read.
    (_line(NAME_CHARACTERS), "GpuFault.meaning ThreadFrames.name WitnessWords.witness"),
    (_line(NAME_CHARACTERS), "BlockedOn.call BlockedOn.command BlockedOn.peer BlockedOn.thread"),
    (_line(PATH_CHARACTERS), "BlockedOn.path StackFrame.function StackFrame.file RankStacks.problem"),
    (_line(PATH_CHARACTERS), "ProfileTaken.files ProfileTaken.problem"),
    (_line(LOGGED_NAME_CHARACTERS), "LoggedNumber.name"),
    (_line(WITNESS_WORDS_CHARACTERS), "RankWords.text"),
)
_RULES = {name: rule for rule, names in _FIELDS for name in names.split()}

_LENGTHS = {
    "NumbersLogged.numbers": MOST_LOGGED_NAMES,
    "WitnessWords.words": MOST_WITNESS_WORDS,
    "RecorderDump.groups": MOST_GROUPS,
    "RecorderDump.calls": _MOST_CALLS,
    "CoordinatorState.nodes": MOST_NODES,
    "TransportDetail.nodes": MOST_NODES,
    "DuplicateSamplesDetail.indices": MOST_RANKS,
}

_NEVER_EMPTY = {
    "Event.node",
    "NonFinite.quantity",
    "Fault.kind",
    "RankWords.ranks",
    "RunSpec.nodes",
    "RunSpec.instance",
    "CoordinatorState.phase",
    "Incident.id",
    "EndedRank.node",
}


def _check_event(event: store.Event) -> None:
    if event.WhichOneof("kind") is None:
        raise RefusedError("kind: it is of no kind that this version knows")


def _check_has_fault(answer: "store.FaultInjected | store.FaultRefused") -> None:
    if not answer.HasField("fault"):
        raise RefusedError("fault is missing")


def _check_blocked_on(blocked: common.BlockedOn) -> None:
    if blocked.next.HasField("next"):
        raise RefusedError("next has a `next`: only one thing follows another")


def _check_group(group: RecordedGroup) -> None:
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


def _check_verdict(verdict: store.Verdict) -> None:
    if not is_complete(verdict):
        raise RefusedError(f"{verdict.WhichOneof('detail') or 'device_call'} lacks what it is about")


_WHOLES: Mapping[str, Callable[[Any], None]] = {
    "Event": _check_event,
    "FaultInjected": _check_has_fault,
    "FaultRefused": _check_has_fault,
    "BlockedOn": _check_blocked_on,
    "RecordedGroup": _check_group,
    "RecorderDump": _check_recorder,
    "StacksTaken": _check_stacks,
    "RunSpec": _check_size,
    "CoordinatorState": _check_nodes,
    "Verdict": _check_verdict,
}


@lru_cache(maxsize=64)
def checker_of(world_size: int) -> MessageChecker:
    """Return the checker of messages of runs of ``world_size`` ranks."""
    numbers = Range(0, _REPORTS_PER_RANK * world_size)
    return MessageChecker(
        world_size,
        rules={**_RULES, "StepSummary.loss_count": numbers, "Mean.count": numbers},
        lengths=_LENGTHS,
        never_empty=_NEVER_EMPTY,
        wholes=_WHOLES,
    )


OF_ANY_RUN = checker_of(MOST_RANKS)
"""Checker of messages whose run may have any size."""


def check_event(event: store.Event, spec: store.RunSpec | None) -> None:
    """Check an event of an agent. ``spec``: of the run, if it is known."""
    checker_of(spec.nodes * spec.ranks_per_node or MOST_RANKS if spec is not None else MOST_RANKS).check(event)


def check_spec(spec: store.RunSpec, run: str) -> None:
    """Check what a run is."""
    _check_run(spec.run, run)
    OF_ANY_RUN.check(spec)


def check_record(record: store.CoordinatorState, run: str) -> None:
    """Check what the last leader knew."""
    _check_run(record.run, run)
    OF_ANY_RUN.check(record)


def check_incident(incident: store.Incident, run: str, key: str) -> None:
    """Check an incident that the store keeps under ``key``."""
    if incident.id != key:
        raise RefusedError(f"it is incident {incident.id[:80]!r}")
    _check_run(incident.run or run, run)
    OF_ANY_RUN.check(incident)


def _check_run(found: str, run: str) -> None:
    if found != run:
        raise RefusedError(f"it is of run {found[:80]!r}")
