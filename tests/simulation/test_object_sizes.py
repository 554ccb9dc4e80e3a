"""The walk over containers finds each of them, also one that nobody has told it of."""

from collections import deque
from dataclasses import dataclass, field

from holdfast_core.model import Telemetry
from holdfast_proto.v1 import store_pb2 as store
from tests.simulation.object_sizes import sizes_of


@dataclass
class _Kept:
    lines: deque[str] = field(default_factory=deque)
    by_name: dict[str, object] = field(default_factory=dict)
    again: object = None


def test_containers_of_objects_mappings_and_messages_are_counted_once_by_their_way() -> None:
    incident = store.Incident(id="1", evidence=["a", "b"])
    incident.actions.add(what="begun")
    record = store.CoordinatorState(nodes=["n0", "n1", "n2"], longest_phase_s={1: 2.0})
    record.time_use.settled_s["idle"] = 1.0
    kept = _Kept(deque(["x"] * 5), {"first": incident, "second": incident, "record": record, "numbers": Telemetry()})
    kept.by_name["text"] = "y" * 1000
    kept.again = kept.lines
    assert sizes_of("kept", kept) == {
        "kept.lines": 5,
        "kept.by_name": 5,
        "kept.by_name[]": 1000,
        "kept.by_name[].evidence": 2,
        "kept.by_name[].actions": 1,
        "kept.by_name[].nodes": 3,
        "kept.by_name[].longest_phase_s": 1,
        "kept.by_name[].time_use.settled_s": 1,
    }
