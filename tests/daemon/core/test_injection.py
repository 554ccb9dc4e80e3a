import pytest

from holdfast_daemon.core import injection
from holdfast_daemon.core.model import FaultRequest
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.fault_pb2 import Fault
from tests.daemon.core.world import World

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
    return injection.refusal(world.state, Fault(kind="kill", rank=rank))


def test_the_node_that_has_the_rank_is_ordered_once(world: World) -> None:
    assert refusal(world, rank=3) == ""
    world.turn(FaultRequest(FAULT))
    for _ in range(30):
        world.turn()
    [(node, command)] = [order for order in world.orders if order[1].WhichOneof("kind") == "inject_fault"]
    assert (node, command.generation, command.inject_fault) == ("node1", 1, FAULT)


def test_a_run_that_does_not_allow_it_is_left_alone(world: World) -> None:
    world.state.spec.injection_allowed = False
    assert "--allow-faults" in refusal(world, rank=3)
    world.turn(FaultRequest(FAULT))
    assert not world.sent("inject_fault")


def test_a_rank_that_is_not_there_is_refused_with_those_that_are(world: World) -> None:
    assert refusal(world, rank=4) == "there is no rank 4 that is alive: name one of 0, 1, 2, 3"
    world.end(3, signal=9)
    world.turn()
    assert refusal(world, rank=3)


def test_a_run_that_does_not_train_is_refused() -> None:
    world = World()
    world.spec.injection_allowed = True
    assert refusal(world, rank=0) == "the run is waiting, not running: try again when it is"


def test_what_was_injected_is_counted_and_told_by_the_incident_that_follows(world: World) -> None:
    event = store.Event(node="node1", generation=1, unix_s=world.now)
    event.fault_injected.CopyFrom(store.FaultInjected(fault=FAULT, step=3))
    world.events.append(event)
    world.turn()
    assert world.state.totals.faults == {"kill": 1}
    assert world.incidents == []
    world.end(3, signal=9)
    world.until("gathering")
    first = world.incidents[0].actions[0]
    assert (first.what, first.unix_s) == ("kill was injected into rank 3 in step 3", event.unix_s)
    assert world.state.untold_faults == ()
