"""Messages that are odd and well formed."""

import json
import math
from typing import Any

from holdfast_core.absorb import PENDING_STEPS
from holdfast_core.incidents import MOST_FILES_NAMED
from holdfast_core.model import CheckpointCounted, SaveIncident, StepCounted
from holdfast_daemon.control.status import status_of
from holdfast_daemon.replay.recorded_tick import decode_state, encode_state
from holdfast_proto.limits import MOST_LOGGED_NAMES
from holdfast_proto.message_json import to_json
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from tests.core.runs import hung, restart, running, send_event
from tests.support.core_world import World


def test_a_call_without_a_name_changes_no_message_of_a_verdict_that_is_about_no_call() -> None:
    world = running()
    world.end(3, signal=9)
    world.tick()
    (incident,) = world.incidents
    assert incident.verdict.op == ""
    captured = store.EvidenceCaptured(incident=incident.id, pending=[common.PendingCall(rank=0, op="gloo:all_reduce")])
    send_event(world, evidence_captured=captured)
    assert world.incidents[0].verdict.message == incident.verdict.message


def test_stacks_and_calls_of_unknown_ranks_are_harmless() -> None:
    world = hung(2)
    for _ in range(300):
        captured = store.EvidenceCaptured(
            incident=world.state.record.open_incident,
            suspicion=world.state.suspicion.id if world.state.suspicion else "",
            pending=[common.PendingCall(rank=77, group="0", seq=11, op="gloo:all_reduce")],
            stacks=[store.StackSummary(rank=number, activity=common.ACTIVITY_COLLECTIVE) for number in (0, 77, 2**31)],
        )
        send_event(world, evidence_captured=captured)
        if world.state.record.generation == 2:
            break
    assert (world.state.record.generation, list(world.incidents[0].verdict.culprits)) == (2, [2])


def test_an_incident_does_not_grow_with_the_nodes_that_send_evidence() -> None:
    world = running(nodes=2)
    world.obeys = False
    world.end(3, signal=9)
    world.until("gathering")
    (incident,) = world.incidents
    first = [f"{number:05}" for number in range(MOST_FILES_NAMED)]
    for begin in range(0, 20 * MOST_FILES_NAMED, 64):
        files = [f"{number:05}" for number in range(begin, begin + 64)]
        captured = store.EvidenceCaptured(incident=incident.id, files=["missing.txt", *files])
        world.events.append(store.Event(node="node0", evidence_captured=captured))
    saved = [action for action in world.tick() if isinstance(action, SaveIncident)]
    assert len(saved) == 1  # it is copied once, however many events there are
    assert list(world.incidents[0].evidence) == ["missing.txt", *first[:-1]]
    send_event(world, evidence_captured=store.EvidenceCaptured(incident=incident.id, files=["more"]))
    assert len(world.incidents[0].evidence) == MOST_FILES_NAMED


def test_recorders_alone_change_no_incident_and_count_as_the_evidence_of_their_node() -> None:
    world = running(nodes=2)
    world.obeys = False
    world.end(3, signal=9)
    world.until("gathering")
    (incident,) = world.incidents
    for node in ("node0", "node1"):
        captured = store.EvidenceCaptured(incident=incident.id, recorders=[store.RankRecorder(rank=1)])
        world.events.append(store.Event(node=node, evidence_captured=captured))
    world.tick()
    assert (world.phase, set(world.state.recorders)) == ("stopping", {1})
    assert list(world.incidents[0].evidence) == []


def test_summaries_of_a_node_do_not_wait_forever_for_those_of_another() -> None:
    world = running(nodes=2)
    first = world.state.record.newest_step + 1
    for step in range(first, first + PENDING_STEPS + 50):
        summary = store.StepSummary(step=step, generation=1, loss_sum=1.0, loss_count=1, duration_s=0.1)
        send_event(world, generation=1, step_summary=summary)
    assert (len(world.state.pending_steps), world.state.record.newest_step) == (PENDING_STEPS, first + 49)


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


def log(world: World, node: str, rank: int, *, is_late: bool = False, **numbers: float) -> None:
    """Have a rank log numbers in step 7, and the leader take them in. ``is_late``: it is of the last generation."""
    logged = [common.LoggedNumber(name=name, value=value, step=7, rank=rank) for name, value in numbers.items()]
    generation = world.state.record.generation - is_late
    event = store.Event(node=node, generation=generation, numbers_logged=store.NumbersLogged(numbers=logged))
    world.events.append(event)
    world.tick()


def shown(world: World) -> dict[str, float]:
    return {name: number.value for name, number in world.state.telemetry.logged.items()}


def test_of_the_ranks_of_all_nodes_that_log_a_name_the_lowest_counts() -> None:
    world = running(nodes=2)
    log(world, "node1", 4, kl=4.0, expert=4.5)
    log(world, "node0", 1, kl=1.0)
    log(world, "node1", 4, kl=5.0, expert=5.5)
    assert shown(world) == {"kl": 1.0, "expert": 5.5}
    log(world, "node0", 1, is_late=True, kl=9.0)
    assert shown(world)["kl"] == 1.0


def test_after_a_restart_another_rank_may_log_a_name() -> None:
    world = running()
    log(world, "node0", 0, kl=1.0)
    world.end(3, signal=9)
    restart(world)
    assert (world.state.record.generation, shown(world)) == (2, {"kl": 1.0})
    log(world, "node0", 2, kl=2.0)
    assert shown(world) == {"kl": 2.0}


def test_a_run_has_a_limited_number_of_names() -> None:
    world = running()
    names: dict[str, Any] = {f"name{index}": 1.0 for index in range(MOST_LOGGED_NAMES)}
    log(world, "node0", 0, **names)
    log(world, "node0", 1, more=1.0, name3=2.0)
    assert len(shown(world)) == MOST_LOGGED_NAMES
    assert "more" not in shown(world)
    world.end(3, signal=9)
    restart(world)
    log(world, "node0", 0, name3=3.0, after=4.0)  # the names of the earlier generation make room
    assert shown(world) == {"name3": 3.0, "after": 4.0}


def test_logged_numbers_are_part_of_the_status_and_of_the_saved_state() -> None:
    world = running()
    log(world, "node0", 1, kl=0.5, accuracy=math.inf)
    status = status_of(world.state, world.now, store_up=True)
    assert [(one.name, one.value, one.step, one.rank) for one in status.logged] == [
        ("accuracy", math.inf, 7, 1),
        ("kl", 0.5, 7, 1),
    ]
    assert [one["value"] for one in to_json(status)["logged"]] == [None, 0.5]
    saved = decode_state(json.loads(json.dumps(encode_state(world.state))))
    assert saved.telemetry.logged == world.state.telemetry.logged
