"""Stories of incidents as JSON. Those of every version can be read."""

import json

import pytest

from holdfast_daemon.incidents.incident_folder import StoryError, parse_story, story_text
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store

INCIDENT = store.Incident(
    id="0001-hung-collective",
    verdict=store.Verdict(
        kind=store.VERDICT_KIND_HUNG_COLLECTIVE,
        culprits=[2],
        phase=common.PHASE_FORWARD_BACKWARD,
        waits=[store.WaitEdge(waiter=0, awaited=2, group="dp", seq=7, op="collective")],
    ),
    state=store.INCIDENT_STATE_RECOVERED,
    source=store.SOURCE_MEMORY,
)


@pytest.mark.parametrize("indent", [None, 1])
def test_a_story_is_read_as_it_was_written(indent: int | None) -> None:
    assert parse_story(story_text(INCIDENT, indent=indent)) == INCIDENT


def test_enums_have_their_short_spelling_and_may_have_the_full_one_of_earlier_versions() -> None:
    fields = json.loads(story_text(INCIDENT))
    assert (fields["verdict"]["kind"], fields["state"]) == ("hung_collective", "recovered")
    fields["verdict"] |= {"kind": "VERDICT_KIND_HUNG_COLLECTIVE", "phase": "PHASE_FORWARD_BACKWARD", "seq": "7"}
    fields |= {"state": "INCIDENT_STATE_RECOVERED", "source": "SOURCE_MEMORY"}
    assert parse_story(json.dumps(fields)).state == INCIDENT.state
    assert parse_story(json.dumps(fields)).verdict.kind == INCIDENT.verdict.kind


def test_fields_and_enum_values_of_a_later_version_are_left_out() -> None:
    assert parse_story('{"state": "of_tomorrow"}') == store.Incident()
    assert parse_story(story_text(INCIDENT).replace('"verdict"', '"later": {"x": [1]}, "verdict"')) == INCIDENT


@pytest.mark.parametrize("text", ["", "[1]", "null", '{"id": 3}', "[" * 100_000, b"\xff\xfe"])
def test_what_is_no_story_is_refused_in_one_line(text: str | bytes) -> None:
    with pytest.raises(StoryError) as refused:
        parse_story(text)
    assert "\n" not in str(refused.value)
