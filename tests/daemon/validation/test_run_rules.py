"""A spec, record or incident with one bad value is refused. The good one that it was made from passes."""

import math

import pytest

from holdfast_daemon.validation.rules import RefusedError
from holdfast_daemon.validation.run_rules import check_incident, check_record, check_spec
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
