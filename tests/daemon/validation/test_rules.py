"""Each rule refuses a bad message. The good message that it was made from passes."""

import math
from collections.abc import Callable

import pytest

from holdfast_daemon.validation.event_rules import check_event
from holdfast_daemon.validation.node_rules import KnownGroups, check_node
from holdfast_daemon.validation.rules import RefusedError
from holdfast_daemon.validation.run_rules import check_incident, check_record, check_spec
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.fault_pb2 import Fault

RUN = "r"
HUGE = 2**63 - 1
UNKNOWN = 99
SPEC = store.RunSpec(run=RUN, nodes=2, ranks_per_node=2, mode=store.MODE_ACT, instance="i")


def good_node() -> store.NodeState:
    node = store.NodeState(
        run=RUN,
        node="a",
        generation=3,
        fence=1_700_000_000_000,
        checkpoints=[4, 9],
        reported_unix_s=1.7e9,
        instance="i",
    )
    for number in (0, 1):
        groups = [common.GroupProgress(group="0", members=[0, 1, 2, 3], enqueued=7, completed=6, description="world")]
        channels = [common.ChannelProgress(group="0", peer=1, direction=common.DIRECTION_SEND, enqueued=2, completed=2)]
        progress = common.Progress(step=5, phase=common.PHASE_OPTIMIZER, groups=groups, channels=channels)
        node.ranks.add(
            rank=number,
            pid=10 + number,
            life=store.LIFE_RUNNING,
            progress=progress,
            stalled_s=0.1,
            process_state="S",
            thread_state="R",
            moved="cpu",
            snapshots=[3, 4],
            coordinates={"dp": number},
            phase_s={common.PHASE_DATA: 0.5},
            pending=[common.PendingCall(rank=number, group="0", seq=7, op="gloo:all_reduce")],
        )
    dead = store.RankExit(signal=9, step=5, phase=common.PHASE_OPTIMIZER, exited_unix_s=1.7e9, last_words="E: x")
    node.ranks[1].exit.CopyFrom(dead)
    node.ranks[1].life = store.LIFE_EXITED
    return node


def set_field(path: str, value: object) -> Callable[[object], None]:
    """Return a function that sets a field of a message. ``a.0.b`` is field b of the first item of a."""
    *parents, name = path.split(".")

    def change(message: object) -> None:
        for parent in parents:
            message = message[int(parent)] if parent.isdecimal() else getattr(message, parent)  # type: ignore[index]
        if isinstance(value, list):
            getattr(message, name)[:] = value
        elif isinstance(value, dict):
            for key, item in value.items():
                getattr(message, name)[key] = item
        else:
            setattr(message, name, value)

    return change


BAD_NODES = [
    ("node", "b"),
    ("run", "other"),
    ("generation", HUGE),
    ("fence", HUGE),
    ("failed_generation", HUGE),
    ("checkpoint_generation", HUGE),
    ("checkpoints", [4, -2]),
    ("reported_unix_s", math.nan),
    ("reported_unix_s", 1e12),
    ("leave_in_s", -1.0),
    ("instance", "x" * 300),
    ("failure", "x" * (2**20 + 1)),
    ("world_size", 2**30),
    ("ranks.1.rank", 0),
    ("ranks.1.rank", 4),
    ("ranks.0.life", UNKNOWN),
    ("ranks.0.stalled_s", math.nan),
    ("ranks.0.stalled_s", math.inf),
    ("ranks.0.stalled_s", -0.5),
    ("ranks.0.silent_s", -math.inf),
    ("ranks.0.busy_s", math.nan),
    ("ranks.0.still_s", math.nan),
    ("ranks.0.first_step_ended_unix_s", -1.0),
    ("ranks.0.steps_done", -1),
    ("ranks.0.process_state", "SS"),
    ("ranks.0.thread_state", "RR"),
    ("ranks.0.moved", "soul"),
    ("ranks.0.device", "x" * 300),
    ("ranks.0.coordinates", {f"axis{number}": 0 for number in range(65)}),
    ("ranks.0.coordinates", {"x" * 300: 0}),
    ("ranks.0.snapshots", [-2]),
    ("ranks.0.snapshots", [HUGE]),
    ("ranks.0.phase_s", {UNKNOWN: 1.0}),
    ("ranks.0.phase_s", {common.PHASE_DATA: math.nan}),
    ("ranks.0.progress.step", -2),
    ("ranks.0.progress.step", HUGE),
    ("ranks.0.progress.phase", UNKNOWN),
    ("ranks.0.progress.groups.0.members", [0, 4]),
    ("ranks.0.progress.groups.0.members", [1, 0]),
    ("ranks.0.progress.groups.0.members", [1, 1]),
    ("ranks.0.progress.groups.0.group", "x" * 300),
    ("ranks.0.progress.groups.0.description", "x" * 3000),
    ("ranks.0.progress.groups.0.enqueued", HUGE),
    ("ranks.0.progress.groups.0.completed", HUGE),
    ("ranks.0.progress.channels.0.direction", UNKNOWN),
    ("ranks.0.progress.channels.0.peer", 4),
    ("ranks.0.progress.channels.0.enqueued", HUGE),
    ("ranks.0.pending.0.rank", 4),
    ("ranks.0.pending.0.seq", HUGE),
    ("ranks.0.pending.0.op", "x" * 300),
    ("ranks.1.exit.step", -2),
    ("ranks.1.exit.phase", UNKNOWN),
    ("ranks.1.exit.signal", -3),
    ("ranks.1.exit.exited_unix_s", math.inf),
]


@pytest.mark.parametrize("known", [False, True], ids=["new groups", "known groups"])
@pytest.mark.parametrize(("path", "value"), BAD_NODES, ids=lambda value: repr(value)[:40])
def test_a_node_with_one_bad_value_is_refused(path: str, value: object, known: bool) -> None:
    groups = KnownGroups()
    if known:
        check_node(good_node(), name="a", run=RUN, spec=SPEC, groups=groups)
    bad = good_node()
    set_field(path, value)(bad)
    with pytest.raises(RefusedError) as caught:
        check_node(bad, name="a", run=RUN, spec=SPEC, groups=groups)
    assert "\n" not in str(caught.value)
    check_node(good_node(), name="a", run=RUN, spec=SPEC, groups=groups)


def test_a_good_node_says_which_ranks_are_alive_there() -> None:
    for spec in (SPEC, None):
        assert check_node(good_node(), name="a", run=RUN, spec=spec, groups=KnownGroups()) == {(3, 0)}


def test_members_that_change_are_looked_at_again() -> None:
    groups = KnownGroups()
    for members in ([0, 1, 2, 3], [0, 1], [0, 2], []):
        node = good_node()
        node.ranks[0].progress.groups[0].members[:] = members
        check_node(node, name="a", run=RUN, spec=SPEC, groups=groups)
    with pytest.raises(RefusedError, match="do not ascend"):
        node.ranks[0].progress.groups[0].members[:] = [2, 0]
        check_node(node, name="a", run=RUN, spec=SPEC, groups=groups)


FAULT = Fault(kind="kill", rank=1, step=-1)
SUMMARY = store.StepSummary(
    step=4,
    generation=3,
    loss_sum=2.0,
    loss_count=2,
    tokens=100,
    duration_s=0.5,
    ended_unix_s=1.7e9,
    phase_s={common.PHASE_DATA: 0.1},
    mfu=store.Mean(sum=1.0, count=2),
    nonfinite=[store.NonFinite(rank=1, quantity="loss")],
    samples=[store.SamplesUsed(rank=1, fingerprint=b"x" * 16)],
    replicas=[store.ReplicaHashes(part="w", hash=1, ranks=[0, 1])],
)
CAPTURED = store.EvidenceCaptured(
    incident="0001-dead-rank",
    files=["rank-00000.stack.txt", "suspicion/node-a.system.txt"],
    pending=[common.PendingCall(rank=1, group="0", seq=7, op="gloo:all_reduce")],
    stacks=[store.StackSummary(rank=1, frame="f (a.py:1)", activity=common.ACTIVITY_DATA)],
    suspicion="0001-0001",
)
EXIT = store.RankExited(rank=1, exit=store.RankExit(code=1, step=3))
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
    ("command_refused", "node", ""),
    ("command_refused", "node", "a\nb"),
    ("command_refused", "generation", HUGE),
    ("command_refused", "unix_s", math.nan),
    ("command_refused", "unix_s", -1.0),
    ("command_refused", "unix_s", 1e18),
    ("rank_exited", "rank_exited.rank", 4),
    ("rank_exited", "rank_exited.exit.step", -2),
    ("rank_exited", "rank_exited.exit.phase", UNKNOWN),
    ("step_summary", "step_summary.step", -2),
    ("step_summary", "step_summary.step", HUGE),
    ("step_summary", "step_summary.generation", HUGE),
    ("step_summary", "step_summary.loss_count", 2**31),
    ("step_summary", "step_summary.tokens", HUGE),
    ("step_summary", "step_summary.dropped_tokens", HUGE),
    ("step_summary", "step_summary.duration_s", math.nan),
    ("step_summary", "step_summary.duration_s", -1.0),
    ("step_summary", "step_summary.ended_unix_s", math.inf),
    ("step_summary", "step_summary.phase_s", {UNKNOWN: 1.0}),
    ("step_summary", "step_summary.phase_s", {common.PHASE_DATA: math.nan}),
    ("step_summary", "step_summary.mfu.count", 2**31),
    ("step_summary", "step_summary.nonfinite.0.rank", 4),
    ("step_summary", "step_summary.nonfinite.0.quantity", "soul"),
    ("step_summary", "step_summary.nonfinite.0.unix_s", math.nan),
    ("step_summary", "step_summary.samples.0.rank", 4),
    ("step_summary", "step_summary.samples.0.fingerprint", b"x" * 100),
    ("step_summary", "step_summary.replicas.0.ranks", [0, 4]),
    ("checkpoint_committed", "checkpoint_committed.step", -2),
    ("checkpoint_committed", "checkpoint_committed.duration_s", math.nan),
    ("checkpoint_failed", "checkpoint_failed.step", HUGE),
    ("checkpoint_unreadable", "checkpoint_unreadable.reason", "x" * (2**20 + 1)),
    ("evidence_captured", "evidence_captured.incident", "../../etc"),
    ("evidence_captured", "evidence_captured.incident", "a/b"),
    ("evidence_captured", "evidence_captured.suspicion", ".."),
    ("evidence_captured", "evidence_captured.files", ["/etc/passwd"]),
    ("evidence_captured", "evidence_captured.files", ["a/../../b"]),
    ("evidence_captured", "evidence_captured.files", [""]),
    ("evidence_captured", "evidence_captured.files", ["a\nb"]),
    ("evidence_captured", "evidence_captured.files", ["x" * 5000]),
    ("evidence_captured", "evidence_captured.pending.0.rank", 4),
    ("evidence_captured", "evidence_captured.pending.0.op", "x" * 300),
    ("evidence_captured", "evidence_captured.stacks.0.rank", 4),
    ("evidence_captured", "evidence_captured.stacks.0.activity", UNKNOWN),
    ("evidence_captured", "evidence_captured.stacks.0.frame", "x" * 5000),
    ("snapshot_memory_refused", "snapshot_memory_refused.directory", "x" * (2**20 + 1)),
    ("fault_injected", "fault_injected.step", -2),
    ("fault_injected", "fault_injected.fault.kind", "Kill them all"),
    ("fault_injected", "fault_injected.fault.phase", UNKNOWN),
    ("fault_injected", "fault_injected.fault.duration_s", math.nan),
    ("fault_refused", "fault_refused.fault.factor", -1.0),
    ("fault_refused", "fault_refused.fault.step", -2),
]


@pytest.mark.parametrize(("kind", "path", "value"), BAD_EVENTS, ids=lambda value: repr(value)[:40])
def test_an_event_with_one_bad_value_is_refused(kind: str, path: str, value: object) -> None:
    event = good_event(kind)
    set_field(path, value)(event)
    with pytest.raises(RefusedError) as caught:
        check_event(event, SPEC)
    assert "\n" not in str(caught.value)


def test_an_event_of_no_known_kind_is_refused() -> None:
    with pytest.raises(RefusedError, match="no kind"):
        check_event(store.Event(node="a"), SPEC)


BAD_SPECS = [
    ("run", "other"),
    ("nodes", 0),
    ("nodes", 2**20),
    ("ranks_per_node", 2**21),
    ("instance", ""),
    ("mode", UNKNOWN),
    ("preset", UNKNOWN),
    ("created_unix_s", math.nan),
    ("checkpoint_every_s", math.nan),
    ("checkpoint_every_s", -1.0),
    ("checkpoint_upload_bytes_per_s", math.inf),
    ("restart_patience", math.nan),
    ("restart_patience", -1.0),
]


@pytest.mark.parametrize(("field", "value"), BAD_SPECS)
def test_a_spec_with_one_bad_value_is_refused(field: str, value: object) -> None:
    check_spec(SPEC, RUN)
    bad = store.RunSpec()
    bad.CopyFrom(SPEC)
    set_field(field, value)(bad)
    with pytest.raises(RefusedError):
        check_spec(bad, RUN)


RECORD = store.CoordinatorState(
    run=RUN,
    phase=store.RUN_PHASE_RUNNING,
    generation=3,
    source=store.SOURCE_MEMORY,
    resumed_step=-1,
    nodes=["a", "b"],
    open_incident="0001-dead-rank",
    newest_step=7,
    last_event_id="1700000000000-5",
    known_pauses=[store.KnownPause(kind="hang eval", longest_s=3.0)],
    longest_phase_s={common.PHASE_EVAL: 3.0},
)
BAD_RECORDS = [
    ("run", "other"),
    ("phase", 0),
    ("phase", UNKNOWN),
    ("source", UNKNOWN),
    ("generation", HUGE),
    ("incident_count", HUGE),
    ("fence", HUGE),
    ("resumed_step", -2),
    ("newest_step", HUGE),
    ("step_at_restart", -2),
    ("left_step", -2),
    ("unreadable_checkpoints", [-2]),
    ("nodes", ["a", "a"]),
    ("nodes", []),
    ("nodes", ["a", ""]),
    ("open_incident", "../x"),
    ("standstill_incident", "a b"),
    ("checkpoint_outage.incident", "/"),
    ("last_event_id", "junk"),
    ("phase_since_unix_s", math.nan),
    ("leave_by_unix_s", -1.0),
    ("known_pauses.0.longest_s", math.nan),
    ("longest_phase_s", {UNKNOWN: 1.0}),
    ("outcome", "x" * (2**20 + 1)),
]


@pytest.mark.parametrize(("field", "value"), BAD_RECORDS, ids=lambda value: repr(value)[:40])
def test_a_record_with_one_bad_value_is_refused(field: str, value: object) -> None:
    check_record(RECORD, RUN)
    bad = store.CoordinatorState()
    bad.CopyFrom(RECORD)
    set_field(field, value)(bad)
    with pytest.raises(RefusedError):
        check_record(bad, RUN)


ID = "0001-dead-rank"
INCIDENT = store.Incident(
    id=ID,
    run=RUN,
    generation=3,
    verdict=store.Verdict(kind=store.VERDICT_KIND_DEAD_RANK, culprits=[1], message="m", confidence_ratio=1.0),
    detected_unix_s=1.7e9,
    resumed_step=-1,
    state=store.INCIDENT_STATE_OPEN,
    actions=[store.IncidentAction(unix_s=1.7e9, what="x")],
    evidence=["a.txt"],
)
INCIDENT.verdict.waits.add(waiter=1, awaited=0, seq=3)
BAD_INCIDENTS = [
    ("id", "0002-dead-rank"),
    ("run", "other"),
    ("state", UNKNOWN),
    ("source", UNKNOWN),
    ("generation", HUGE),
    ("detected_unix_s", math.nan),
    ("recovered_unix_s", -1.0),
    ("reached_step", HUGE),
    ("lost_steps", -2),
    ("actions.0.unix_s", math.inf),
    ("evidence", ["../../x"]),
    ("verdict.kind", UNKNOWN),
    ("verdict.phase", UNKNOWN),
    ("verdict.activity", UNKNOWN),
    ("verdict.confidence_ratio", math.nan),
    ("verdict.step", HUGE),
    ("verdict.culprits", [2**30]),
    ("verdict.waits.0.awaited", 2**30),
]


@pytest.mark.parametrize(("field", "value"), BAD_INCIDENTS, ids=lambda value: repr(value)[:40])
def test_an_incident_with_one_bad_value_is_refused(field: str, value: object) -> None:
    check_incident(INCIDENT, RUN, ID)
    bad = store.Incident()
    bad.CopyFrom(INCIDENT)
    set_field(field, value)(bad)
    with pytest.raises(RefusedError):
        check_incident(bad, RUN, ID)


@pytest.mark.parametrize("name", ["..", "a/b", "", "x" * 200, "a\n"])
def test_an_incident_whose_id_names_no_folder_is_refused(name: str) -> None:
    bad = store.Incident()
    bad.CopyFrom(INCIDENT)
    bad.id = name
    with pytest.raises(RefusedError):
        check_incident(bad, RUN, name)
