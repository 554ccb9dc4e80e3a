"""A spec, record or incident with one bad value is refused. The good one that it was made from passes."""

import math

import pytest

from holdfast_core.texts.render import write
from holdfast_daemon.validation.message_rules import check_incident, check_record, check_spec
from holdfast_proto.checks.value_rules import MOST_ITEMS, RefusedError
from holdfast_proto.limits import MOST_RANKS, NAME_CHARACTERS
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from tests.daemon.validation.bad_values import RUN, SPEC, UNKNOWN, changed

BAD_SPECS = [
    ("run", "other"),
    ("nodes", 0),
    ("nodes", 2**20),
    ("ranks_per_node", 2**21),
    ("instance", ""),
    ("checkpoint_upload_bytes_per_s", math.inf),
    ("restart_patience", math.nan),
    ("restart_patience", -1.0),
    ("versions", {"torch": "x" * (NAME_CHARACTERS + 1)}),
]


@pytest.mark.parametrize(("field", "value"), BAD_SPECS)
def test_a_spec_with_one_bad_value_is_refused(field: str, value: object) -> None:
    check_spec(SPEC, RUN)
    with pytest.raises(RefusedError):
        check_spec(changed(SPEC, field, value), RUN)


RECORD = store.CoordinatorState(
    run=RUN,
    phase=store.RUN_PHASE_RUNNING,
    nodes=["a", "b"],
    last_event_id="1700000000000-5",
    longest_phase_s={common.PHASE_EVAL: 3.0},
    time_use=store.TimeUse(settled_s={"productive": 60.0, "start_up": 5.0}),
)
BAD_RECORDS = [
    ("run", "other"),
    ("phase", 0),
    ("unreadable_checkpoints", [-2]),
    ("nodes", ["a", "a"]),
    ("nodes", []),
    ("nodes", ["a", ""]),
    ("last_event_id", "junk"),
    ("longest_phase_s", {UNKNOWN: 1.0}),
    ("time_use.settled_s", {"productive": math.nan}),
    ("time_use.settled_s", {"lunch": 1.0}),
]


@pytest.mark.parametrize(("field", "value"), BAD_RECORDS, ids=lambda value: repr(value)[:40])
def test_a_record_with_one_bad_value_is_refused(field: str, value: object) -> None:
    check_record(RECORD, RUN)
    with pytest.raises(RefusedError):
        check_record(changed(RECORD, field, value), RUN)


def test_a_record_with_too_many_pinned_checkpoints_is_refused() -> None:
    pinned = [store.PinnedCheckpoint()] * (MOST_ITEMS + 1)
    with pytest.raises(RefusedError, match="pinned has"):
        check_record(changed(RECORD, "pinned", pinned), RUN)


ID = "0001-dead-rank"
INCIDENT = store.Incident(
    id=ID,
    run=RUN,
    verdict=store.Verdict(kind=store.VERDICT_KIND_DEAD_RANK, culprits=[1], message="m", confidence_ratio=1.0),
    evidence=["a.txt"],
)
BAD_INCIDENTS = [
    ("id", "0002-dead-rank"),
    ("run", "other"),
    ("evidence", ["../../x"]),
    ("verdict.confidence_ratio", math.nan),
    ("verdict.culprits", [2**30]),
]


@pytest.mark.parametrize(("field", "value"), BAD_INCIDENTS, ids=lambda value: repr(value)[:40])
def test_an_incident_with_one_bad_value_is_refused(field: str, value: object) -> None:
    check_incident(INCIDENT, RUN, ID)
    with pytest.raises(RefusedError):
        check_incident(changed(INCIDENT, field, value), RUN, ID)


@pytest.mark.parametrize("name", ["..", "a/b", "", "x" * 200, "a\n"])
def test_an_incident_whose_id_names_no_folder_is_refused(name: str) -> None:
    with pytest.raises(RefusedError):
        check_incident(changed(INCIDENT, "id", name), RUN, name)


SIDE = store.MismatchSide(ranks=[0])
SLOW = store.Verdict(culprits=[1], straggler=store.StragglerDetail(kind=store.OWN_TIME_KIND_BUSY, own_s=2.0))
HELD = store.Verdict(hang=store.HangDetail(ranks=[store.HeldRank(rank=1, activity=common.ACTIVITY_DISK)]))


def mismatch(form: "store.MismatchForm", *sides: store.MismatchSide) -> store.Verdict:
    return store.Verdict(mismatch=store.MismatchDetail(form=form, sides=sides))


GOOD_DETAILS = [
    store.Verdict(death=store.DeathDetail(ends=[store.RankEnd(rank=1, cause=store.END_CAUSE_KILLED)])),
    mismatch(store.MISMATCH_FORM_CIRCLE, SIDE),
    mismatch(store.MISMATCH_FORM_PEER, SIDE, SIDE),
    store.Verdict(throughput=store.ThroughputDetail(step_s=2.0, step_before_s=1.0)),
    store.Verdict(throughput=store.ThroughputDetail(mfu_ratio=0.1)),
    SLOW,
    HELD,
]
BAD_DETAILS = {
    "death without ends": store.Verdict(death=store.DeathDetail()),
    "hang without ranks": store.Verdict(hang=store.HangDetail(in_start=True)),
    "lost node without ranks": store.Verdict(lost_node=store.LostNodeDetail(node="a")),
    "mismatch without form": store.Verdict(mismatch=store.MismatchDetail(sides=[SIDE])),
    "mismatch without sides": mismatch(store.MISMATCH_FORM_CIRCLE),
    "mismatch whose side has no ranks": mismatch(store.MISMATCH_FORM_CIRCLE, store.MismatchSide()),
    "wrong peer with one side": mismatch(store.MISMATCH_FORM_PEER, SIDE),
    "different calls with one side": mismatch(store.MISMATCH_FORM_DIFFERENT_CALLS, SIDE),
    "calls left out with one side": mismatch(store.MISMATCH_FORM_BEHIND, SIDE),
    "slower than steps of 0 s": store.Verdict(throughput=store.ThroughputDetail(step_s=2.0, step_before_s=0.0)),
    "slower than steps of -1 s": store.Verdict(throughput=store.ThroughputDetail(step_s=2.0, step_before_s=-1.0)),
    "time that is no number": store.Verdict(culprits=[1], straggler=store.StragglerDetail(own_s=math.nan)),
    "infinite time": store.Verdict(culprits=[1], straggler=store.StragglerDetail(usual_s=math.inf)),
    "straggler without a culprit": store.Verdict(straggler=store.StragglerDetail(own_s=2.0)),
    "unknown kind of time": changed(SLOW, "straggler.kind", UNKNOWN),
    "unknown activity of a rank": changed(HELD, "hang.ranks.0.activity", UNKNOWN),
    "text without end": store.Verdict(transport=store.TransportDetail(said="x" * (2**20 + 1))),
    "more ranks than a world has": store.Verdict(lost_node=store.LostNodeDetail(ranks=range(MOST_RANKS + 1))),
}


@pytest.mark.parametrize("verdict", GOOD_DETAILS, ids=lambda verdict: str(verdict.WhichOneof("detail")))
def test_a_detail_of_which_a_text_can_be_rendered_passes(verdict: store.Verdict) -> None:
    check_incident(store.Incident(id=ID, verdict=verdict), RUN, ID)
    write(verdict)


@pytest.mark.parametrize("bad", BAD_DETAILS.values(), ids=BAD_DETAILS)
def test_a_bad_detail_is_refused(bad: store.Verdict) -> None:
    with pytest.raises(RefusedError, match=r"^verdict\."):
        check_incident(store.Incident(id=ID, verdict=bad), RUN, ID)
