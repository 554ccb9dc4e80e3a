from dataclasses import replace

import pytest

from holdfast_core import fault_requests
from holdfast_core.detectors.numbers.silent_corruption import SilentCorruption
from holdfast_core.model import Action, FaultAnswered, FaultRequest
from holdfast_daemon.control.status import status_of
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.common_pb2 import PHASE_OPTIMIZER
from holdfast_proto.v1.fault_pb2 import Fault
from tests.support.core_world import World
from tests.support.steps import view

FAULT = Fault(kind="kill", rank=3, step=-1)


@pytest.fixture
def world() -> World:
    world = World(nodes=2, ranks_per_node=2)
    world.spec.injection_allowed = True
    world.until("starting")
    world.train(3)
    world.until("running")
    return world


def refusal(world: World, *, rank: int) -> str:
    return fault_requests.refusal(world.state, Fault(kind="kill", rank=rank))


def answers(actions: list[Action]) -> list[str]:
    return [action.refusal for action in actions if isinstance(action, FaultAnswered) and action.fault == FAULT]


def test_the_node_that_has_the_rank_gets_the_command_once(world: World) -> None:
    assert refusal(world, rank=3) == ""
    world.tick(FaultRequest(FAULT))
    world.stand(3.0)
    [(node, command)] = [sent for sent in world.commands if sent[1].WhichOneof("kind") == "inject_fault"]
    assert (node, command.generation, command.inject_fault) == ("node1", 1, FAULT)


def test_a_run_that_does_not_allow_it_is_left_alone(world: World) -> None:
    world.state.spec.injection_allowed = False
    assert "--allow-faults" in refusal(world, rank=3)
    [answer] = answers(world.tick(FaultRequest(FAULT)))
    assert "--allow-faults" in answer
    assert world.sent("inject_fault") == []


def test_a_rank_that_is_not_there_is_refused_with_those_that_are(world: World) -> None:
    assert refusal(world, rank=4) == "there is no rank 4 that is alive: name one of 0, 1, 2, 3"
    world.end(3, signal=9)
    world.tick()
    assert refusal(world, rank=3)


def test_a_flipped_bit_is_refused_in_a_rank_whose_plain_parameters_no_other_rank_holds(world: World) -> None:
    flip = Fault(kind="bit-flip", rank=3, step=-1)
    assert fault_requests.refusal(world.state, flip) == ""  # the rank itself decides
    coverage = [store.RankCoverage(rank=rank, plain_bytes=8, parameter_bytes=8) for rank in range(4)]
    detector = SilentCorruption().see_step(view(store.StepSummary(step=3, coverage=coverage))).next
    state = replace(world.state, detectors={**world.state.detectors, SilentCorruption.name: detector})
    assert "try again later" in fault_requests.refusal(state, flip)
    assert fault_requests.refusal(state, FAULT) == ""


def test_a_run_that_does_not_train_is_refused() -> None:
    world = World()
    world.spec.injection_allowed = True
    assert refusal(world, rank=0) == "the run is waiting, not running: try again when it is"


@pytest.mark.parametrize(
    ("injected", "story"),
    [
        (store.FaultInjected(fault=FAULT, step=3), "kill was accepted by rank 3 in step 3"),
        (store.FaultInjected(fault=Fault(kind="kill", rank=3, step=9), step=9), "kill was armed in rank 3 for step 9"),
        (
            store.FaultInjected(fault=Fault(kind="kill", rank=3, step=-1, phase=PHASE_OPTIMIZER), step=4),
            "kill was armed in rank 3 for step 4 or later, at the start of the phase optimizer",
        ),
        (
            store.FaultInjected(fault=Fault(kind="kill", rank=3, step=-1), step=4, waits_for="the phase eval"),
            "kill was armed in rank 3: it waits for the phase eval",
        ),
    ],
)
def test_the_story_claims_no_strike_before_its_step_and_phase(
    world: World, injected: store.FaultInjected, story: str
) -> None:
    world.events.append(store.Event(node="node1", generation=1, unix_s=world.now, fault_injected=injected))
    [answer] = [action for action in world.tick() if isinstance(action, FaultAnswered)]
    assert (answer.refusal, answer.waits_for) == ("", injected.waits_for)
    world.end(3, signal=9)
    world.until("gathering")
    assert world.incidents[0].actions[0].what == story


def test_what_was_injected_is_counted_and_reported_by_the_incident_that_follows(world: World) -> None:
    event = store.Event(node="node1", generation=1, unix_s=world.now)
    event.fault_injected.CopyFrom(store.FaultInjected(fault=FAULT, step=3))
    world.events.append(event)
    assert (answers(world.tick()), world.state.totals.faults, world.incidents) == ([""], {"kill": 1}, [])
    world.end(3, signal=9)
    world.until("gathering")
    first = world.incidents[0].actions[0]
    assert (first.what, first.unix_s) == ("kill was accepted by rank 3 in step 3", event.unix_s)
    assert world.state.unreported_faults == ()


def test_the_refusal_of_a_rank_is_answered_shown_and_reported_by_the_incident_that_follows(world: World) -> None:
    event = store.Event(node="node1", generation=1, unix_s=world.now)
    event.fault_refused.CopyFrom(store.FaultRefused(fault=FAULT, reason="too late"))
    world.events.append(event)
    assert answers(world.tick()) == ["too late"]
    status = status_of(world.state, world.now, store_up=True)
    assert (list(status.faults), list(status.faults_refused)) == ([], [event.fault_refused])
    assert world.state.totals.faults == {}
    world.end(0, signal=9)
    world.until("gathering")
    assert world.incidents[0].actions[0].what == "kill was not injected into rank 3: too late"
