"""The judge of benchmarks/controls.py finds each thing that must not happen. No processes run here."""

import dataclasses

import pytest

from benchmarks.odd_runs.activities import ACTIVITIES
from benchmarks.odd_runs.case import OddCase, Place, Twin
from benchmarks.odd_runs.cases import ALL, CASES, QUICK
from benchmarks.odd_runs.judge import judge
from benchmarks.odd_runs.meetings import MEETINGS
from benchmarks.odd_runs.odd_run import Observed
from benchmarks.odd_runs.outside import ACTIONS, RESUME_ALL_BUT_ONE, THEN_STOP_ONE
from benchmarks.odd_runs.patience import Sign
from benchmarks.odd_runs.pause import LoggedPause
from holdfast_core.recovery.restart_patience import RestartPatience
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.control_pb2 import RunStatus

CASE = OddCase(name="computes", activity="loop", by=(0,), sign=Sign.COMPUTING, lasts_s=6.0)
BEGAN_S = 1000.0
RESOLVED = store.Incident(state=store.INCIDENT_STATE_RESOLVED)
LATER = store.IncidentAction(what="also seen: ranks 0, 1 wait for each other: rank 0 for rank 1 in all_reduce 7")

QUIET = Observed(
    exit_code=0,
    status=RunStatus(generation=1, newest_step=CASE.last_step),
    incidents=(RESOLVED,),
    restart_seen_s=None,
    culprit_gone_s=None,
    pauses=(LoggedPause(0, 1, BEGAN_S, BEGAN_S + 6.0),),
    last_words="",
    took_s=12.0,
)
RESTARTED = dataclasses.replace(
    QUIET,
    status=RunStatus(generation=2, newest_step=CASE.last_step, restarts=1),
    restart_seen_s=BEGAN_S + 19.0,
    pauses=(LoggedPause(0, 1, BEGAN_S),),
)


def problems(observed: Observed, *, twin: bool = False, case: OddCase = CASE) -> str:
    return "; ".join(judge(case, observed, twin=twin).problems)


def test_a_control_that_is_left_alone_and_a_twin_that_is_restarted_in_time_are_as_wanted() -> None:
    assert problems(QUIET) == ""
    assert problems(RESTARTED, twin=True) == ""


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"status": RunStatus(generation=2, newest_step=CASE.last_step, restarts=1)}, "restarted 1 times"),
        ({"status": RunStatus(generation=1, newest_step=7)}, "trained to step 7 of 39"),
        ({"exit_code": 1}, "exit code 1"),
        ({"exit_code": None}, "has not ended"),
        ({"incidents": (RESOLVED, RESOLVED)}, "2 incidents, 1 allowed"),
        ({"incidents": (store.Incident(state=store.INCIDENT_STATE_STANDSTILL),)}, "not closed: standstill"),
        ({"incidents": (store.Incident(state=RESOLVED.state, actions=[LATER]),)}, "false: also seen: ranks 0, 1 wait"),
        ({"pauses": ()}, "no pause was logged"),
        ({"pauses": (LoggedPause(0, 1, BEGAN_S, BEGAN_S + 0.5),)}, "is reported after 1 s"),
        ({"pauses": (LoggedPause(0, 1, BEGAN_S, BEGAN_S + 18.5),)}, "a restart is due after 18 s"),
    ],
)
def test_what_must_not_happen_to_a_control_is_found(change: dict[str, object], found: str) -> None:
    assert found in problems(dataclasses.replace(QUIET, **change))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"restart_seen_s": None}, "never restarted"),
        ({"restart_seen_s": BEGAN_S + 17.0}, "ended after 17.0 s, due after 18 s"),
        ({"restart_seen_s": BEGAN_S + 24.0}, "ended after 24.0 s, due after 18 s"),
        ({"status": RunStatus(generation=3, restarts=2)}, "restarted 2 times"),
        ({"exit_code": 1}, "exit code 1"),
    ],
)
def test_a_twin_that_is_not_restarted_as_the_table_says_is_found(change: dict[str, object], found: str) -> None:
    assert found in problems(dataclasses.replace(RESTARTED, **change), twin=True)  # type: ignore[arg-type]


def test_a_twin_that_hangs_after_its_last_step_is_ended_and_not_restarted() -> None:
    case = dataclasses.replace(CASE, place=Place.AT_EXIT, sign=Sign.PHASE)
    reported = store.Incident(state=store.INCIDENT_STATE_RECOVERED, detected_unix_s=BEGAN_S + 41.0)
    ended = dataclasses.replace(
        RESTARTED,
        status=RunStatus(generation=1),
        restart_seen_s=None,
        culprit_gone_s=BEGAN_S + 62.0,
        incidents=(reported,),
    )
    assert problems(ended, twin=True, case=case) == ""
    assert "not reported" in problems(dataclasses.replace(ended, incidents=()), twin=True, case=case)
    assert "never restarted" in problems(dataclasses.replace(ended, culprit_gone_s=None), twin=True, case=case)


def test_a_twin_whose_server_falls_silent_counts_from_the_last_move_before_its_restart() -> None:
    case = dataclasses.replace(CASE, twin=Twin(sign=Sign.LIKELY, from_last_move=True))
    moves_s = (BEGAN_S + 1.0, BEGAN_S + 15.0, BEGAN_S + 21.0)
    stuck = dataclasses.replace(RESTARTED, pauses=(LoggedPause(0, 1, BEGAN_S, moves_s=moves_s),))
    assert judge(case, stuck, twin=True).seconds == 4.0
    assert problems(stuck, twin=True, case=case) == ""


def test_every_case_can_be_carried_out_and_is_between_its_deadlines() -> None:
    assert len(ALL) >= 60
    assert set(QUICK) <= {case.name for case in ALL}
    for case in CASES.values():
        known = ACTIONS if case.place is Place.OUTSIDE else ACTIVITIES
        assert case.activity in known
        assert case.as_twin().activity in {*known, THEN_STOP_ONE, RESUME_ALL_BUT_ONE}
        assert case.waiters in MEETINGS
        assert not case.phase or f"PHASE_{case.phase}" in common.Phase.keys()  # noqa: SIM118 - an enum's wrapper
        case.check()


@pytest.mark.parametrize("preset", ["fast", "default", "patient"])
def test_the_deadlines_that_controls_are_measured_against_are_those_of_the_daemon(preset: str) -> None:
    spec = store.RunSpec(preset=f"PRESET_{preset.upper()}", restart_patience=0.3)
    patience = RestartPatience.of(spec, store.CoordinatorState())
    deadlines_s = {
        Sign.LIKELY: patience.likely_s(common.PHASE_FORWARD_BACKWARD),
        Sign.COMPUTING: patience.time_alone_s(common.PHASE_FORWARD_BACKWARD),
        Sign.PHASE: patience.time_alone_s(common.PHASE_EVAL),
    }
    for sign, deadline_s in deadlines_s.items():
        case = dataclasses.replace(CASE, sign=sign, preset=preset, factor=0.3)
        assert case.restart_deadline_s == pytest.approx(max(case.report_deadline_s, deadline_s))
