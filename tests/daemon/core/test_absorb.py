"""Messages that are odd and well formed."""

from holdfast_daemon.core.absorb import PENDING_STEPS
from holdfast_daemon.core.model import CheckpointCounted, StepCounted
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from tests.support.core_world import World


def running(nodes: int = 1) -> World:
    world = World(nodes=nodes)
    world.until("starting")
    world.train(5)
    return world


def test_a_call_without_a_name_changes_no_message_of_a_verdict_that_is_about_no_call() -> None:
    world = running()
    world.end(3, signal=9)
    world.tick()
    (incident,) = world.incidents
    assert incident.verdict.op == ""
    captured = store.EvidenceCaptured(incident=incident.id, pending=[common.PendingCall(rank=0, op="gloo:all_reduce")])
    world.events.append(store.Event(node="node0", evidence_captured=captured))
    world.tick()
    assert world.incidents[0].verdict.message == incident.verdict.message


def test_stacks_and_calls_of_unknown_ranks_are_harmless() -> None:
    world = running()
    world.hang(2)
    for _ in range(300):
        captured = store.EvidenceCaptured(
            incident=world.state.record.open_incident,
            suspicion=world.state.suspicion.id if world.state.suspicion else "",
            pending=[common.PendingCall(rank=77, group="0", seq=11, op="gloo:all_reduce")],
            stacks=[store.StackSummary(rank=number, activity=common.ACTIVITY_COLLECTIVE) for number in (0, 77, 2**31)],
        )
        world.events.append(store.Event(node="node0", evidence_captured=captured))
        world.tick()
        if world.state.record.generation == 2:
            break
    assert world.state.record.generation == 2
    assert list(world.incidents[0].verdict.culprits) == [2]


def test_summaries_of_a_node_do_not_wait_forever_for_those_of_another() -> None:
    world = running(nodes=2)
    first = world.state.record.newest_step + 1
    for step in range(first, first + PENDING_STEPS + 50):
        summary = store.StepSummary(step=step, generation=1, loss_sum=1.0, loss_count=1, duration_s=0.1)
        world.events.append(store.Event(node="node0", generation=1, step_summary=summary))
    world.tick()
    assert len(world.state.pending_steps) == PENDING_STEPS
    assert world.state.record.newest_step == first + 49


def test_each_counted_step_and_each_committed_checkpoint_is_for_the_history() -> None:
    world = World(nodes=2)
    world.until("starting")
    world.train(2)
    generation = world.state.record.generation
    for node in ("node0", "node1"):
        summary = store.StepSummary(step=2, generation=generation, duration_s=0.3, loss_sum=1.0, loss_count=1)
        world.events.append(store.Event(node=node, generation=generation, step_summary=summary))
    committed = store.CheckpointCommitted(step=1, raw_bytes=10)
    world.events.append(store.Event(node="node0", generation=generation, checkpoint_committed=committed))
    actions = world.tick()
    steps = [action.summary for action in actions if isinstance(action, StepCounted)]
    assert [(one.step, one.loss_sum) for one in steps] == [(2, 2.0)]
    (checkpoint,) = [action.event for action in actions if isinstance(action, CheckpointCounted)]
    assert checkpoint.checkpoint_committed == committed
