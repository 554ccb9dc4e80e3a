"""What the core remembers has bounds: beyond them, the newest stays."""

import pytest

from holdfast_core import coordinator, incidents, live_requests, tick
from holdfast_core.absorb import UNREADABLE_KEPT
from holdfast_core.accounting.latencies import LATENCY_BUCKETS_S, Latencies
from holdfast_core.model import LiveAnswered, StacksRequest
from holdfast_core.naming import incident_number
from holdfast_core.tick import Tick
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.fault_pb2 import Fault
from tests.core.runs import running, send_event
from tests.support.core_world import World


@pytest.fixture
def one_tick() -> Tick:
    return Tick(coordinator.begin(store.RunSpec(run="r", nodes=1, ranks_per_node=2)), now=5.0)


def test_latencies_count_each_duration_in_all_buckets_that_include_it() -> None:
    latencies = Latencies().add(0.1).add(0.2).add(1e9)
    counts = dict(zip((*LATENCY_BUCKETS_S, "all"), latencies.counts, strict=True))
    assert (counts[0.05], counts[0.1], counts[0.25], counts[300.0], counts["all"]) == (0, 1, 2, 2, 3)
    assert latencies.sum_s == pytest.approx(1e9 + 0.3)


def test_a_story_keeps_its_first_lines_and_the_newest(one_tick: Tick) -> None:
    incident = incidents.note_incident(one_tick, store.Verdict(kind=store.VERDICT_KIND_STRAGGLER))
    for number in range(1000):
        incidents.add_line(one_tick, one_tick.state.incidents[incident.id], f"{number}")
    lines = [action.what for action in one_tick.state.incidents[incident.id].actions]
    assert (len(lines), lines[0], lines[49], lines[50], lines[-1]) == (200, "0", "49", "850", "999")


def test_of_what_is_reported_once_the_newest_is_remembered(one_tick: Tick) -> None:
    for number in range(tick.MOST_REPORTED_ONCE):
        assert one_tick.once(f"{number}")
    assert not one_tick.once("0")
    assert one_tick.once("another")
    assert not one_tick.once("1")
    assert one_tick.once("0"), "the oldest was forgotten"
    assert len(one_tick.state.reported_once) == tick.MOST_REPORTED_ONCE


def test_the_newest_unreadable_checkpoints_are_remembered() -> None:
    world = running()
    for step in range(UNREADABLE_KEPT + 10):
        world.events.append(store.Event(node="node0", checkpoint_unreadable=store.CheckpointUnreadable(step=step)))
    world.tick()
    assert list(world.state.record.unreadable_checkpoints) == list(range(10, UNREADABLE_KEPT + 10))


def test_faults_without_an_incident_are_not_kept_for_ever() -> None:
    world = running()
    for step in range(100):
        injected = store.FaultInjected(fault=Fault(kind="slow", rank=1), step=step)
        send_event(world, generation=1, fault_injected=injected)
    steps = [event.fault_injected.step for event in world.state.unreported_faults]
    assert steps == list(range(36, 100))


def test_further_requests_are_refused_while_many_wait() -> None:
    world = running()
    world.obeys = False
    waiting = [StacksRequest(f"{number}") for number in range(live_requests.MOST_REQUESTS)]
    assert answers(world, *waiting) == []
    assert answers(world, StacksRequest("more")) == [
        f"{live_requests.MOST_REQUESTS} requests wait for their answers: try again when some are answered"
    ]


def answers(world: World, *requests: StacksRequest) -> list[str]:
    return [action.refusal for action in world.tick(*requests) if isinstance(action, LiveAnswered)]


def test_a_machine_that_was_replaced_has_no_clock_any_more() -> None:
    world = running(nodes=2)
    spare = store.NodeState(run="r", node="spare", ready=True, stopped=True, instance="i")
    for node in (*world.node_states.values(), spare):
        node.reported_unix_s = world.now
    world.node_states["spare"] = spare
    world.tick()
    assert set(world.state.clock_leads_s) == {"node0", "node1", "spare"}
    del world.node_states["spare"]
    world.node_states["node0"].reported_unix_s = world.now + 1.0
    world.tick()
    assert set(world.state.clock_leads_s) == {"node0", "node1"}


def test_incidents_are_ordered_by_number() -> None:
    ids = ["10000-straggler", "9999-dead-rank", "note", "0001-dead-rank"]
    assert sorted(ids, key=incident_number) == ["0001-dead-rank", "9999-dead-rank", "10000-straggler", "note"]
