"""The decisions of a daemon that takes a run over: its fence, and the state from which it continues."""

import pytest

from holdfast_core import coordinator
from holdfast_core.model import CoreState
from holdfast_daemon.leadership.leadership import anew, lowest_fence, may_continue
from holdfast_proto.v1 import store_pb2 as store


@pytest.fixture
def state() -> CoreState:
    nodes = {name: store.NodeState(node=name, fence=fence) for name, fence in (("a", 3), ("b", 7))}
    incidents = {name: store.Incident(id=name) for name in ("0002-dead-rank", "0004-hung-collective", "by-hand")}
    begun = coordinator.begin(store.RunSpec(run="r", nodes=2, ranks_per_node=1), incidents=incidents)
    return CoreState(spec=begun.spec, record=begun.record, deadlines=begun.deadlines, nodes=nodes, incidents=incidents)


def test_the_fence_is_at_least_the_highest_that_an_agent_has_obeyed(state: CoreState) -> None:
    assert lowest_fence(state) == 7
    assert lowest_fence(None) == 0


def test_a_leader_without_a_successor_continues_from_its_own_state(state: CoreState) -> None:
    assert may_continue(state, store.CoordinatorState(fence=5), own_fences={5})
    assert not may_continue(state, store.CoordinatorState(fence=6), own_fences={5})


def test_the_own_state_outlives_a_store_that_has_lost_the_record(state: CoreState) -> None:
    assert may_continue(state, None, own_fences={5})
    assert not may_continue(None, None, own_fences={5})


def test_without_a_record_incidents_are_numbered_after_those_in_the_store(state: CoreState) -> None:
    begun = anew(state, "12-0")
    assert (begun.record.incident_count, begun.record.last_event_id) == (4, "12-0")
    assert state.record.incident_count == 0
