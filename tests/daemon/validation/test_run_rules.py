"""A spec, record or incident with one bad value is refused. The good one that it was made from passes."""

import math

import pytest

from holdfast_core.texts.render import write
from holdfast_daemon.validation.message_rules import check_incident, check_record, check_spec
from holdfast_daemon.validation.rules import MOST_ITEMS, RefusedError
from holdfast_proto.limits import MOST_RANKS, NAME_CHARACTERS
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from tests.daemon.validation.bad_values import HUGE, RUN, SPEC, UNKNOWN, set_field

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
    ("versions", {"torch": "x" * (NAME_CHARACTERS + 1)}),
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
    pinned=[store.PinnedCheckpoint(kind=store.VERDICT_KIND_LOSS_SPIKE, step=5)],
    wanted=[store.WantedCheckpoint(incident="0001-non-finite", before_step=5)],
    time_use=store.TimeUse(
        since_unix_s=1.7e9, settled_s={"productive": 60.0, "start_up": 5.0}, reached_step=7, generation_step=-1
    ),
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
    ("pinned.0.kind", UNKNOWN),
    ("pinned.0.step", -(2**60)),
    ("wanted.0.incident", "../0001"),
    ("wanted.0.before_step", -(2**60)),
    ("outcome", "x" * (2**20 + 1)),
    ("time_use.since_unix_s", math.inf),
    ("time_use.progress_unix_s", math.nan),
    ("time_use.judged_unix_s", -1.0),
    ("time_use.ended_unix_s", 1e12),
    ("time_use.settled_s", {"productive": math.nan}),
    ("time_use.settled_s", {"idle": -1.0}),
    ("time_use.settled_s", {"restart": math.inf}),
    ("time_use.settled_s", {"lunch": 1.0}),
    ("time_use.reached_step", -2),
    ("time_use.generation_step", HUGE),
]


@pytest.mark.parametrize(("field", "value"), BAD_RECORDS, ids=lambda value: repr(value)[:40])
def test_a_record_with_one_bad_value_is_refused(field: str, value: object) -> None:
    check_record(RECORD, RUN)
    bad = store.CoordinatorState()
    bad.CopyFrom(RECORD)
    set_field(field, value)(bad)
    with pytest.raises(RefusedError):
        check_record(bad, RUN)


def test_a_record_with_too_many_pinned_checkpoints_is_refused() -> None:
    bad = store.CoordinatorState()
    bad.CopyFrom(RECORD)
    bad.pinned.extend([RECORD.pinned[0]] * MOST_ITEMS)
    with pytest.raises(RefusedError, match="pinned has"):
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


def unknown_time() -> store.StragglerDetail:
    detail = store.StragglerDetail(own_s=2.0)
    set_field("kind", UNKNOWN)(detail)
    return detail


def unknown_activity() -> store.HangDetail:
    detail = store.HangDetail(ranks=[store.HeldRank(rank=1)])
    set_field("ranks.0.activity", UNKNOWN)(detail)
    return detail


SIDE = store.MismatchSide(ranks=[0])
GOOD_DETAILS = [
    store.Verdict(death=store.DeathDetail(ends=[store.RankEnd(rank=1, cause=store.END_CAUSE_KILLED)])),
    store.Verdict(mismatch=store.MismatchDetail(form=store.MISMATCH_FORM_CIRCLE, sides=[SIDE])),
    store.Verdict(mismatch=store.MismatchDetail(form=store.MISMATCH_FORM_PEER, sides=[SIDE, SIDE])),
    store.Verdict(throughput=store.ThroughputDetail(step_s=2.0, step_before_s=1.0)),
    store.Verdict(throughput=store.ThroughputDetail(mfu_ratio=0.1)),
    store.Verdict(culprits=[1], straggler=store.StragglerDetail(kind=store.OWN_TIME_KIND_BUSY, own_s=2.0)),
    store.Verdict(hang=store.HangDetail(ranks=[store.HeldRank(rank=1, activity=common.ACTIVITY_DISK)])),
]
BAD_DETAILS = {
    "death without ends": store.Verdict(death=store.DeathDetail()),
    "hang without ranks": store.Verdict(hang=store.HangDetail(in_start=True)),
    "lost node without ranks": store.Verdict(lost_node=store.LostNodeDetail(node="a")),
    "mismatch without form": store.Verdict(mismatch=store.MismatchDetail(sides=[SIDE])),
    "mismatch without sides": store.Verdict(mismatch=store.MismatchDetail(form=store.MISMATCH_FORM_CIRCLE)),
    "mismatch whose side has no ranks": store.Verdict(
        mismatch=store.MismatchDetail(form=store.MISMATCH_FORM_CIRCLE, sides=[store.MismatchSide()])
    ),
    "wrong peer with one side": store.Verdict(
        mismatch=store.MismatchDetail(form=store.MISMATCH_FORM_PEER, sides=[SIDE])
    ),
    "different calls with one side": store.Verdict(
        mismatch=store.MismatchDetail(form=store.MISMATCH_FORM_DIFFERENT_CALLS, sides=[SIDE])
    ),
    "calls left out with one side": store.Verdict(
        mismatch=store.MismatchDetail(form=store.MISMATCH_FORM_BEHIND, sides=[SIDE])
    ),
    "slower than steps of 0 s": store.Verdict(throughput=store.ThroughputDetail(step_s=2.0, step_before_s=0.0)),
    "slower than steps of less than 0 s": store.Verdict(
        throughput=store.ThroughputDetail(step_s=2.0, step_before_s=-1.0)
    ),
    "time that is no number": store.Verdict(culprits=[1], straggler=store.StragglerDetail(own_s=math.nan)),
    "infinite time": store.Verdict(culprits=[1], straggler=store.StragglerDetail(usual_s=math.inf)),
    "straggler without a culprit": store.Verdict(straggler=store.StragglerDetail(own_s=2.0)),
    "unknown kind of time": store.Verdict(culprits=[1], straggler=unknown_time()),
    "unknown activity of a rank": store.Verdict(hang=unknown_activity()),
    "text without end": store.Verdict(transport=store.TransportDetail(said="x" * (2**20 + 1))),
    "more ranks than a world has": store.Verdict(lost_node=store.LostNodeDetail(ranks=range(MOST_RANKS + 1))),
}


@pytest.mark.parametrize("verdict", GOOD_DETAILS, ids=lambda verdict: str(verdict.WhichOneof("detail")))
def test_a_detail_of_which_a_text_can_be_rendered_passes(verdict: store.Verdict) -> None:
    check_incident(incident_of(verdict), RUN, ID)
    write(verdict)


@pytest.mark.parametrize("bad", BAD_DETAILS)
def test_a_bad_detail_is_refused(bad: str) -> None:
    with pytest.raises(RefusedError, match=r"^verdict\."):
        check_incident(incident_of(BAD_DETAILS[bad]), RUN, ID)


def incident_of(verdict: store.Verdict) -> store.Incident:
    incident = store.Incident()
    incident.CopyFrom(INCIDENT)
    incident.verdict.CopyFrom(verdict)
    return incident
