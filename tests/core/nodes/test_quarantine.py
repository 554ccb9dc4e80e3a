"""Which nodes should not train, by their checks and by what incidents say against them."""

import signal

import pytest

from holdfast_core.model import ReleaseRequest
from holdfast_core.nodes.node_faults import FAULTS_KEPT, NODES_KEPT, WINDOW_S
from holdfast_core.nodes.node_views import node_views, nodes_advice, nodes_note
from holdfast_proto.v1 import control_pb2 as control
from holdfast_proto.v1 import fault_pb2 as fault
from holdfast_proto.v1 import store_pb2 as store
from tests.core.nodes.checked_nodes import add_spare, check, checked, reasons, story
from tests.core.runs import edited_record, restart, send_event
from tests.support.core_world import World

BROKEN = "cannot be written: no space left on device"


def training(world: World) -> World:
    """Let a run train."""
    world.until("starting")
    world.train(3)
    assert world.phase == "running"
    return world


def fail(world: World, rank: int, **how: int) -> None:
    """End a rank, and let the run train again. Each time it is another step."""
    world.end(rank, **(how or {"signal": signal.SIGSEGV}))
    restart(world)
    world.train(3)


def test_a_check_that_failed_is_a_reason_until_a_later_check_finds_nothing() -> None:
    world = training(checked())
    assert reasons(world) == {}
    check(world.node_states["node1"], ended_s=world.now, failure=BROKEN)
    world.tick()
    assert reasons(world) == {"node1": f"disk: {BROKEN}"}
    assert world.state.record.node_histories[0].since_unix_s == world.now
    check(world.node_states["node1"], ended_s=world.now + 1)
    world.tick()
    assert reasons(world) == {}


def test_a_node_that_is_slower_than_all_others_should_not_train() -> None:
    world = checked()
    check(world.node_states["node2"], ended_s=world.now, gemm=1e9)
    world.tick()
    assert list(reasons(world)) == ["node2"]


def test_what_fails_on_most_nodes_is_no_fault_of_one_of_them() -> None:
    world = checked(nodes=3)
    for name in ("node0", "node1"):
        check(world.node_states[name], ended_s=world.now, failure=BROKEN)
    world.tick()
    assert reasons(world) == {}
    check(world.node_states["node0"], ended_s=world.now + 1)
    world.tick()
    assert list(reasons(world)) == ["node1"]


def test_a_node_that_is_lost_stays_in_quarantine() -> None:
    world = training(checked(acts=False))
    check(world.node_states["node3"], ended_s=world.now, failure=BROKEN)
    world.tick()
    del world.node_states["node3"]
    world.until("stopping")
    assert reasons(world) == {"node3": f"disk: {BROKEN}"}


def test_a_run_that_trains_is_not_stopped_for_a_quarantine() -> None:
    world = training(checked())
    add_spare(world, "spare")
    check(world.node_states["node1"], ended_s=world.now, failure=BROKEN)
    world.train(20)
    assert world.phase == "running" and "node1" in world.state.record.nodes and not world.sent("stop")


def test_the_third_fault_of_a_node_is_a_reason_that_names_the_incidents() -> None:
    world = training(checked(acts=False))
    fail(world, 2)
    fail(world, 3)
    assert reasons(world) == {}
    fail(world, 2)
    reason = "at fault 3 times: incidents 0003-dead-rank, 0002-dead-rank, 0001-dead-rank"
    assert reasons(world) == {"node1": reason}
    assert f"node node1 should not train: {reason}" in story(world)


def test_faults_on_all_nodes_are_of_the_program() -> None:
    world = training(checked(nodes=2, acts=False))
    for rank in (0, 2, 0, 2, 0, 2):
        fail(world, rank)
    assert reasons(world) == {}
    assert [len(one.faults) for one in world.state.record.node_histories] == [3, 3]


@pytest.mark.parametrize(
    "how",
    [
        {"code": 1},
        {"signal": signal.SIGTERM},
        {"signal": signal.SIGKILL},
        {"signal": signal.SIGKILL, "out_of_memory": True},
    ],
)
def test_an_end_by_the_program_or_on_request_is_no_fault_of_the_node(how: dict[str, int]) -> None:
    world = training(checked())
    fail(world, 2, **how)
    assert not world.state.record.node_histories


def test_a_fault_at_the_same_step_each_time_counts_once() -> None:
    world = training(checked(acts=False))
    for _ in range(2):
        world.end(2, signal=signal.SIGSEGV)
        restart(world)
    assert [len(one.faults) for one in world.state.record.node_histories] == [1]


def test_a_rank_that_fails_on_another_node_too_is_of_the_program() -> None:
    world = training(checked(acts=False))
    add_spare(world, "spare")
    fail(world, 2)
    del world.node_states["node1"]
    world.until("stopping")
    restart(world)
    usual, moved = world.rank, world.node_states["spare"].ranks
    world.rank = lambda number: moved[number - 2] if number in (2, 3) else usual(number)  # type: ignore[method-assign]
    world.end(2, signal=signal.SIGSEGV)
    world.until("stopping")
    assert {one.node: len(one.faults) for one in world.state.record.node_histories} == {"node1": 2}


def test_faults_of_others_later_on_do_not_end_a_quarantine() -> None:
    world = training(checked(nodes=2, acts=False))
    for rank in (2, 3, 2, 0, 1, 0):
        fail(world, rank)
    assert list(reasons(world)) == ["node1"]


def test_a_fault_of_a_new_start_counts_though_its_incident_has_the_number_of_an_earlier_one() -> None:
    world = training(checked(acts=False))
    with edited_record(world) as record:
        history = record.node_histories.add(node="node1")
        history.faults.add(unix_s=1.0, kind=store.VERDICT_KIND_DEAD_RANK, run="r", incident="0001-dead-rank")
    fail(world, 2)
    assert [len(one.faults) for one in world.state.record.node_histories] == [2]


def test_a_new_run_begins_with_the_faults_that_earlier_ones_have_seen() -> None:
    world = checked(acts=False)
    with edited_record(world) as record:
        history = record.node_histories.add(node="node1")
        for number in range(3):
            history.faults.add(unix_s=world.now, kind=store.VERDICT_KIND_DEAD_RANK, run="q", incident=f"{number}-x")
    world.tick()
    assert list(reasons(world)) == ["node1"]


def test_an_injected_fault_does_not_count() -> None:
    world = training(checked())
    injected = store.FaultInjected(fault=fault.Fault(rank=2, kind="kill"), step=3)
    send_event(world, node="node1", generation=1, fault_injected=injected)
    fail(world, 2, signal=signal.SIGABRT)
    assert not world.state.record.node_histories


def test_a_lost_node_is_at_fault_and_a_run_of_one_node_blames_none() -> None:
    world = training(checked(acts=False))
    add_spare(world, "spare")
    del world.node_states["node3"]
    world.until("stopping")
    assert [(one.node, one.faults[0].kind) for one in world.state.record.node_histories] == [
        ("node3", store.VERDICT_KIND_LOST_NODE)
    ]
    alone = training(checked(nodes=1))
    fail(alone, 0)
    assert not alone.state.record.node_histories


def test_a_release_ends_the_quarantine_and_what_was_known_counts_no_more() -> None:
    world = training(checked(acts=False))
    for rank in (2, 3, 2):
        fail(world, rank)
    check(world.node_states["node1"], ended_s=world.now + 3600, failure=BROKEN)  # its clock is ahead
    world.tick()
    world.tick(ReleaseRequest("node1"))
    assert reasons(world) == {}
    fail(world, 2)
    assert reasons(world) == {}
    world.tick(ReleaseRequest("node7"))  # of which nothing is known
    assert [one.node for one in world.state.record.node_histories] == ["node1"]


def test_old_faults_do_not_count_with_new_ones() -> None:
    world = training(checked(acts=False))
    fail(world, 2)
    fail(world, 3)
    world.now += WINDOW_S
    fail(world, 2)
    assert reasons(world) == {}


def test_histories_are_bounded_and_those_with_a_quarantine_stay() -> None:
    world = training(checked(acts=False))
    with edited_record(world) as record:
        record.node_histories.add(node="bad", quarantine="it is broken")
        for number in range(NODES_KEPT - 1):
            record.node_histories.add(node=f"n{number}")
        faults = [store.NodeFault(unix_s=float(at), incident=f"{at}-x", run="r") for at in range(FAULTS_KEPT)]
        record.node_histories[-1].node = "node1"
        record.node_histories[-1].faults.extend(faults)
    fail(world, 0)
    fail(world, 2)
    kept = {one.node: one for one in world.state.record.node_histories}
    assert len(kept) == NODES_KEPT and "bad" in kept and "n0" not in kept
    assert len(kept["node1"].faults) == FAULTS_KEPT


def test_a_new_leader_comes_to_the_same_reasons() -> None:
    world = training(checked(acts=False))
    check(world.node_states["node1"], ended_s=world.now, failure=BROKEN)
    world.tick()
    world.lose_leader()
    world.tick()
    assert list(reasons(world)) == ["node1"]


def test_people_see_the_nodes_with_roles_and_reasons() -> None:
    world = checked()
    del world.node_states["node3"]
    world.tick()
    assert {view.role for view in node_views(world.state)} == {control.NODE_ROLE_READY}
    world = training(checked())
    add_spare(world, "spare")
    check(world.node_states["node2"], ended_s=world.now, failure=BROKEN)
    check(world.node_states["node1"], ended_s=world.now, gemm=1e9)
    world.tick()
    assert nodes_note(world.state).startswith("node node1 should not train: CPU GEMM: 1 GFLOP/s")
    assert "1 more" in nodes_note(world.state) and "holdfast nodes" in nodes_advice(world.state)
    del world.node_states["node3"]
    world.tick()
    views = {view.node: view for view in node_views(world.state)}
    assert list(views) == ["node0", "node1", "node2", "node3", "spare"]
    roles = {name: control.NodeRole.Name(view.role).removeprefix("NODE_ROLE_") for name, view in views.items()}
    assert roles == {"node0": "MEMBER", "node1": "MEMBER", "node2": "MEMBER", "node3": "MISSING", "spare": "SPARE"}
    assert views["node1"].slow and views["node2"].check.failures and not views["node0"].HasField("history")
