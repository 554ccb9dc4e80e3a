import json
import math
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict, ParseError

from holdfast_proto.message_json import enum_name, enum_names, from_json, to_json
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import control_pb2 as control
from holdfast_proto.v1 import store_pb2 as store

INCIDENT = store.Incident(
    id="0001-hung-collective",
    generation=2**40,
    verdict=store.Verdict(
        kind=store.VERDICT_KIND_HUNG_COLLECTIVE,
        culprits=[1, 2],
        step=44,
        phase=common.PHASE_FORWARD_BACKWARD,
        waits=[store.WaitEdge(waiter=0, awaited=1, group="0", seq=662)],
        activity=common.ACTIVITY_STOPPED,
    ),
    detected_unix_s=2_000.5,
    state=store.INCIDENT_STATE_RECOVERED,
    actions=[store.IncidentAction(unix_s=2_001.0, what="restart")],
)


def test_what_is_written_is_read() -> None:
    text = json.dumps(to_json(INCIDENT))
    assert from_json(json.loads(text), store.Incident()) == INCIDENT


def test_what_earlier_versions_wrote_is_read() -> None:
    text = json.dumps(MessageToDict(INCIDENT, preserving_proto_field_name=True))
    assert "VERDICT_KIND_HUNG_COLLECTIVE" in text
    assert from_json(json.loads(text), store.Incident()) == INCIDENT


def test_enum_values_are_words_and_integers_are_numbers() -> None:
    fields = to_json(INCIDENT)
    assert fields["verdict"]["kind"] == "hung_collective"
    assert fields["verdict"]["phase"] == "forward_backward"
    assert fields["state"] == "recovered"
    assert fields["generation"] == 2**40


def test_maps_of_messages_keep_their_keys() -> None:
    nodes = {"a": store.NodeState(ranks=[store.RankState(rank=3, life=store.LIFE_RUNNING)])}
    status = store.CoordinatorState(phase=store.RUN_PHASE_RUNNING)
    assert to_json(status)["phase"] == "running"
    for node in nodes.values():
        assert from_json(to_json(node), store.NodeState()) == node


@pytest.mark.parametrize("module", [common, store, control])
def test_the_values_of_every_enum_share_the_prefix_of_their_type(module: Any) -> None:
    for kind in module.DESCRIPTOR.enum_types_by_name.values():
        prefix = kind.values_by_number[0].name.removesuffix("UNSPECIFIED")
        assert prefix.endswith("_")
        assert all(value.name.startswith(prefix) for value in kind.values), kind.name


def test_a_number_of_a_later_version_is_shown_as_it_is() -> None:
    assert enum_name(store.RunPhase, 99) == "99"
    assert enum_name(store.RunPhase, store.RUN_PHASE_RUNNING) == "running"


def test_words_of_an_enum_leave_out_the_value_that_means_none() -> None:
    assert enum_names(store.Mode) == {"observe": store.MODE_OBSERVE, "act": store.MODE_ACT}


def test_numbers_that_json_does_not_know_are_null() -> None:
    fields = to_json(store.IncidentAction(unix_s=math.inf))
    assert fields["unix_s"] is None
    assert from_json(fields, store.IncidentAction()) == store.IncidentAction()


def test_an_unknown_word_is_refused_or_ignored_as_protobuf_does() -> None:
    assert from_json({"state": "dancing"}, store.Incident()) == store.Incident()
    with pytest.raises(ParseError):
        from_json({"generation": "many"}, store.Incident())
