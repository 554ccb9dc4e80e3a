"""An event with one bad value is refused. The good event that it was made from passes."""

import math

import pytest

from holdfast_daemon.validation.message_rules import check_event
from holdfast_proto.checks.value_rules import RefusedError
from holdfast_proto.limits import MOST_LOGGED_NAMES
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.fault_pb2 import Fault
from holdfast_proto.v1.recorder_pb2 import RecordedGroup, RecorderDump
from tests.daemon.validation.bad_values import HUGE, RUN, SPEC, UNKNOWN, changed

FAULT = Fault(kind="kill", rank=1, step=-1)
SUMMARY = store.StepSummary(
    step=4,
    generation=3,
    loss_sum=2.0,
    loss_count=2,
    tokens=100,
    duration_s=0.5,
    phase_s={common.PHASE_DATA: 0.1},
    mfu=store.Mean(sum=1.0, count=2),
    nonfinite=[store.NonFinite(rank=1, quantity="loss")],
    samples=[store.SamplesUsed(rank=1, fingerprint=b"x" * 16)],
    replicas=[store.ReplicaHashes(part="w", hash=1, ranks=[0, 1])],
    plain=[store.ReplicaHashes(part="", hash=1, ranks=[0, 1])],
    coverage=[store.RankCoverage(rank=1, replica_bytes=1, plain_bytes=1, parameter_bytes=2)],
    replay=store.ReplaySummary(duration_s=0.5, differences=[store.RankReplay(rank=1, part="all_reduce 1")]),
)
BLOCKED = common.BlockedOn(
    activity=common.ACTIVITY_PROCESS,
    party=common.PARTY_CHILD,
    pid=9,
    next=common.BlockedOn(activity=common.ACTIVITY_FILE_LOCK, path="/data/ä.lock"),
)
CAPTURED = store.EvidenceCaptured(
    incident="0001-dead-rank",
    files=["rank-00000.stack.txt", "suspicion/node-a.system.txt"],
    pending=[common.PendingCall(rank=1, group="0", seq=7, op="gloo:all_reduce")],
    stacks=[store.StackSummary(rank=1, frame="f (a.py:1)", activity=common.ACTIVITY_DATA, blocked_on=BLOCKED)],
    suspicion="0001-0001",
    places=[store.RankPlace(rank=1, step=3, phase=common.PHASE_DATA)],
)
EXIT = store.RankExited(rank=1, exit=store.RankExit(code=1, step=3))
STACKS = store.StacksTaken(
    request="20261124-001122-abcdef",
    frames=[store.StackFrame(function="f", file="a.py", line=3)],
    ranks=[store.RankStacks(rank=1, pid=9, threads=[store.ThreadFrames(id=9, name="MainThread", frames=[0, 0])])],
)
GOOD_EVENTS = {
    "rank_exited": store.Event(rank_exited=EXIT),
    "step_summary": store.Event(step_summary=SUMMARY),
    "checkpoint_committed": store.Event(checkpoint_committed=store.CheckpointCommitted(step=4, duration_s=1.0)),
    "checkpoint_failed": store.Event(checkpoint_failed=store.CheckpointFailed(step=4, reason="x")),
    "checkpoint_unreadable": store.Event(checkpoint_unreadable=store.CheckpointUnreadable(step=4, reason="x")),
    "evidence_captured": store.Event(evidence_captured=CAPTURED),
    "command_refused": store.Event(command_refused=store.CommandRefused(reason="x")),
    "snapshot_memory_refused": store.Event(snapshot_memory_refused=store.SnapshotMemoryRefused(directory="/dev/shm")),
    "fault_injected": store.Event(fault_injected=store.FaultInjected(fault=FAULT, step=4)),
    "fault_refused": store.Event(fault_refused=store.FaultRefused(fault=FAULT, reason="x")),
    "stacks_taken": store.Event(stacks_taken=STACKS),
    "profile_taken": store.Event(
        profile_taken=store.ProfileTaken(request="a", rank=1, files=["/a/b.json.gz"], first_step=3, last_step=4)
    ),
    "end_announced": store.Event(end_announced=store.EndAnnounced(within_s=60.0)),
    "launcher_end": store.Event(launcher_end=store.LauncherEnd(code=1)),
    "numbers_logged": store.Event(
        numbers_logged=store.NumbersLogged(numbers=[common.LoggedNumber(name="kl", value=math.nan, step=-1, rank=1)])
    ),
    "witness_words": store.Event(
        witness_words=session.WitnessWords(
            run=RUN, witness="Ray Train", words=[session.RankWords(ranks=[0, 1], text="ValueError: bad")]
        )
    ),
}


def good_event(kind: str) -> store.Event:
    event = store.Event(node="a", generation=3, unix_s=1.7e9)
    event.MergeFrom(GOOD_EVENTS[kind])
    return event


def test_there_is_a_good_event_of_every_kind() -> None:
    assert GOOD_EVENTS.keys() == {field.name for field in store.Event.DESCRIPTOR.oneofs_by_name["kind"].fields}


@pytest.mark.parametrize("kind", GOOD_EVENTS)
def test_a_good_event_passes(kind: str) -> None:
    for spec in (SPEC, None):
        check_event(good_event(kind), spec)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("field", ["loss_sum", "validation_loss", "grad_norm", "update_norm", "loss_scale"])
def test_what_training_reports_may_be_not_finite(field: str, value: float) -> None:
    event = good_event("step_summary")
    setattr(event.step_summary, field, value)
    event.step_summary.balance_loss.sum = value
    check_event(event, SPEC)


BAD_EVENTS = [
    ("stacks_taken", "stacks_taken.request", "../x"),
    ("stacks_taken", "stacks_taken.frames.0.function", "f\x1b[2J"),
    ("stacks_taken", "stacks_taken.frames.0.file", "x" * 5000),
    ("stacks_taken", "stacks_taken.ranks.0.problem", "a\nb"),
    ("stacks_taken", "stacks_taken.ranks.0.threads.0.name", "a\nb"),
    ("stacks_taken", "stacks_taken.ranks.0.threads.0.id", 2**23),
    ("stacks_taken", "stacks_taken.ranks.0.threads.0.frames", [0, 1]),
    ("profile_taken", "profile_taken.request", "a/b"),
    ("profile_taken", "profile_taken.files", ["/a\x1b"]),
    ("profile_taken", "profile_taken.problem", "a\nb"),
    ("launcher_end", "launcher_end.code", 256),
    ("numbers_logged", "numbers_logged.numbers.0.name", "a\nb"),
    ("numbers_logged", "numbers_logged.numbers.0.name", "x" * 101),
    ("witness_words", "witness_words.witness", "a\x1b[2J"),
    ("witness_words", "witness_words.words.0.text", "a\nb"),
    ("witness_words", "witness_words.words.0.text", "x" * 401),
    ("witness_words", "witness_words.words.0.ranks", [4]),
    ("witness_words", "witness_words.words.0.ranks", []),
    ("command_refused", "node", ""),
    ("command_refused", "node", "a\nb"),
    ("command_refused", "generation", HUGE),
    ("command_refused", "unix_s", math.nan),
    ("command_refused", "unix_s", -1.0),
    ("command_refused", "unix_s", 1e18),
    ("rank_exited", "rank_exited.rank", 4),
    ("rank_exited", "rank_exited.exit.step", -2),
    ("rank_exited", "rank_exited.exit.phase", UNKNOWN),
    ("step_summary", "step_summary.step", HUGE),
    ("step_summary", "step_summary.loss_count", 2**31),
    ("step_summary", "step_summary.tokens", HUGE),
    ("step_summary", "step_summary.dropped_tokens", HUGE),
    ("step_summary", "step_summary.duration_s", math.nan),
    ("step_summary", "step_summary.duration_s", -1.0),
    ("step_summary", "step_summary.phase_s", {UNKNOWN: 1.0}),
    ("step_summary", "step_summary.phase_s", {common.PHASE_DATA: math.nan}),
    ("step_summary", "step_summary.mfu.count", 2**31),
    ("step_summary", "step_summary.nonfinite.0.quantity", "soul"),
    ("step_summary", "step_summary.nonfinite.0.parameter", "x" * (2**20 + 1)),
    ("step_summary", "step_summary.replay.duration_s", math.nan),
    ("step_summary", "step_summary.replay.differences.0.rank", 4),
    ("step_summary", "step_summary.samples.0.fingerprint", b"x" * 100),
    ("evidence_captured", "evidence_captured.incident", "../../etc"),
    ("evidence_captured", "evidence_captured.suspicion", ".."),
    ("evidence_captured", "evidence_captured.files", ["/etc/passwd"]),
    ("evidence_captured", "evidence_captured.files", ["a/../../b"]),
    ("evidence_captured", "evidence_captured.files", [""]),
    ("evidence_captured", "evidence_captured.files", ["a\nb"]),
    ("evidence_captured", "evidence_captured.files", ["x" * 5000]),
    ("evidence_captured", "evidence_captured.pending.0.op", "x" * 300),
    ("evidence_captured", "evidence_captured.stacks.0.frame", "x" * 5000),
    ("evidence_captured", "evidence_captured.stacks.0.blocked_on.rank", 2**31),
    ("evidence_captured", "evidence_captured.stacks.0.blocked_on.path", "x" * 5000),
    ("evidence_captured", "evidence_captured.stacks.0.blocked_on.command", "a\nb"),
    ("evidence_captured", "evidence_captured.stacks.0.blocked_on.peer", "\x1b[31m"),
    ("evidence_captured", "evidence_captured.stacks.0.blocked_on.thread", "x" * 300),
    ("evidence_captured", "evidence_captured.stacks.0.blocked_on.next.path", "a\nb"),
    ("evidence_captured", "evidence_captured.stacks.0.blocked_on.next.next.pid", 1),
    ("fault_injected", "fault_injected.fault.kind", "Kill them all"),
    ("fault_injected", "fault_injected.fault.duration_s", math.nan),
    ("fault_refused", "fault_refused.fault.factor", -1.0),
]


@pytest.mark.parametrize(("kind", "path", "value"), BAD_EVENTS, ids=lambda value: repr(value)[:40])
def test_an_event_with_one_bad_value_is_refused(kind: str, path: str, value: object) -> None:
    with pytest.raises(RefusedError) as caught:
        check_event(changed(good_event(kind), path, value), SPEC)
    assert "\n" not in str(caught.value)


def test_an_event_of_no_known_kind_is_refused() -> None:
    with pytest.raises(RefusedError, match="no kind"):
        check_event(store.Event(node="a"), SPEC)


def test_more_logged_numbers_than_a_run_has_names_for_are_refused() -> None:
    event = good_event("numbers_logged")
    event.numbers_logged.numbers.extend([common.LoggedNumber(name="kl")] * MOST_LOGGED_NAMES)
    with pytest.raises(RefusedError, match="numbers has 65 items, more than 64"):
        check_event(event, SPEC)


@pytest.mark.parametrize(
    "runs",
    [[[0, 1, 2**20 - 8], [1, 1, 2**20 - 8]], [[0, 1, 2**31]], [[0, 0, 2]], [[0, 1]], [[1, 1, 1, 1, 1, 1]]],
    ids=["too many in all", "too many", "no distance", "cut off", "twice"],
)
def test_groups_of_a_dump_that_stand_for_more_than_a_rank_has_are_refused(runs: list[list[int]]) -> None:
    dump = RecorderDump(groups=[RecordedGroup(name=str(index), member_runs=one) for index, one in enumerate(runs)])
    captured = store.EvidenceCaptured(suspicion="s", recorders=[store.RankRecorder(rank=1, dump=dump)])
    with pytest.raises(RefusedError, match=r"members|member_runs"):
        check_event(store.Event(node="a", evidence_captured=captured), SPEC)
