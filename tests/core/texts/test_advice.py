"""What to do next: every kind of verdict has an advice, and a section of the runbook."""

from pathlib import Path

import pytest

from holdfast_core.texts.advice import ADVICE, next_line, runbook
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.session_pb2 import REPLAY_VOTE_FIRST

ACTS = store.RunSpec(mode=store.MODE_ACT, ranks_per_node=4)
OBSERVES = store.RunSpec(mode=store.MODE_OBSERVE)
ABORTS = store.RunSpec(mode=store.MODE_OBSERVE, on_hang=store.HANG_ACTION_ABORT)
RUNBOOK = Path(__file__).parents[3] / "docs" / "runbook.md"


def test_every_kind_has_an_advice_and_a_section_that_exists() -> None:
    assert set(ADVICE) == set(store.VerdictKind.values()) - {store.VERDICT_KIND_UNSPECIFIED}
    headings = {
        line.removeprefix("## ").lower().replace(" ", "-")
        for line in RUNBOOK.read_text().splitlines()
        if line.startswith("## ")
    }
    assert {runbook(kind).partition("#")[2] for kind in ADVICE} <= headings


@pytest.mark.parametrize(
    ("state", "spec", "begins"),
    [
        (store.INCIDENT_STATE_OPEN, ACTS, "Holdfast restarts the run if it can."),
        (store.INCIDENT_STATE_STANDSTILL, ACTS, "Holdfast waits, and restarts the run if the signs of a fault last."),
        (store.INCIDENT_STATE_OPEN, OBSERVES, "Holdfast only observes this run, and restarts nothing."),
        (store.INCIDENT_STATE_OPEN, ABORTS, "The launcher ends or restarts the run once a hung rank is ended."),
        (store.INCIDENT_STATE_STANDSTILL, ABORTS, "Holdfast waits, and ends a hung rank if the signs of a fault last."),
        (store.INCIDENT_STATE_RECOVERED, ACTS, "Nothing is urgent: it is over."),
        (store.INCIDENT_STATE_NOTED, ACTS, "Read what the rank said last: `holdfast logs --culprit`."),
    ],
)
def test_the_line_says_what_holdfast_does_and_what_a_person_can_do(
    state: "store.IncidentState", spec: store.RunSpec, begins: str
) -> None:
    incident = store.Incident(state=state, verdict=store.Verdict(kind=store.VERDICT_KIND_DEAD_RANK))
    line = next_line(incident, spec)
    assert line.startswith(begins)
    assert line.endswith("Read what the rank said last: `holdfast logs --culprit`.")


def test_what_a_recorder_showed_wins() -> None:
    verdict = store.Verdict(kind=store.VERDICT_KIND_HUNG_COLLECTIVE, device_call=store.DeviceCallDetail(next="do this"))
    assert next_line(store.Incident(state=store.INCIDENT_STATE_NOTED, verdict=verdict), ACTS) == "do this."


@pytest.mark.parametrize(("is_decided", "begins"), [(True, "Test the node"), (False, "Take the node out of service")])
def test_after_a_replay_that_decided_nothing_is_to_be_undone(is_decided: bool, begins: str) -> None:
    detail = store.CorruptionDetail(vote=REPLAY_VOTE_FIRST, has_majority=is_decided)
    verdict = store.Verdict(kind=store.VERDICT_KIND_SILENT_CORRUPTION, corruption=detail)
    assert next_line(store.Incident(state=store.INCIDENT_STATE_NOTED, verdict=verdict), ACTS).startswith(begins)
