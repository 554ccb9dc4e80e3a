"""A core that raises. The run is still led, and the core sees all input on which it does not raise."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from holdfast_core import coordinator
from holdfast_core.model import CheckpointAnswered, CheckpointRequest, CoreState, FaultRequest, Observation, StopRequest
from holdfast_daemon.leadership.guarded_core import DISTRUST_S, MOST_TRIES, GuardedCore
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.fault_pb2 import Fault

SPEC = store.RunSpec(run="r", nodes=4, ranks_per_node=1, mode=store.MODE_ACT, instance="i")
RAISES = 666
NODES = ("a", "b", "c", "d")


def nodes(*bad: str, fence: int = 0) -> dict[str, store.NodeState]:
    return {
        name: store.NodeState(run="r", node=name, instance="i", ready=True, fence=RAISES if name in bad else fence)
        for name in NODES
    }


def committed(step: int) -> store.Event:
    return store.Event(node="a", unix_s=float(step), checkpoint_committed=store.CheckpointCommitted(step=step))


class Fragile:
    """The real core, changed to raise on some of its input."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps = 0
        self.always = False
        self._step: Callable[..., Any] = coordinator.step
        monkeypatch.setattr(coordinator, "step", self.step)

    def step(self, state: CoreState, now: float, observation: Observation, *rest: Any) -> Any:
        self.steps += 1
        if self.always or any(node.fence == RAISES for node in observation.nodes.values()):
            raise KeyError("node")
        if any(event.checkpoint_committed.step == RAISES for event in observation.events):
            raise ValueError("event\nof two lines")
        if FaultRequest(Fault(kind="kill")) in observation.requests:
            raise TypeError("request")
        return self._step(state, now, observation, *rest)


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Fragile:
    return Fragile(monkeypatch)


def begun() -> CoreState:
    state, _ = coordinator.step(coordinator.begin(SPEC), 1.0, Observation(nodes=nodes()))
    assert state.record.phase == store.RUN_PHASE_STARTING
    return state


def fences(state: CoreState) -> dict[str, int]:
    return {name: node.fence for name, node in state.nodes.items()}


def test_a_tick_that_does_not_raise_is_taken_once(core: Fragile) -> None:
    state = begun()
    core.steps = 0
    stepped = GuardedCore("r").step(state, 2.0, Observation(nodes=nodes(), events=(committed(4),)))
    assert (stepped.error, core.steps, stepped.state.totals.checkpoints) == (None, 1, 1)


@pytest.mark.parametrize("place", range(5))
def test_an_event_that_raises_is_passed_over_alone(core: Fragile, place: int) -> None:
    events = [committed(step) for step in range(1, 5)]
    events.insert(place, committed(RAISES))
    stepped = GuardedCore("r").step(begun(), 2.0, Observation(nodes=nodes(fence=1), events=tuple(events)))
    assert isinstance(stepped.error, ValueError)
    assert (stepped.state.totals.checkpoints, stepped.state.totals.last_checkpoint_unix_s) == (4, 4.0)
    assert fences(stepped.state) == dict.fromkeys(NODES, 1)
    assert stepped.failed_requests == ()


def test_of_many_events_that_raise_as_many_are_found_as_time_allows(core: Fragile) -> None:
    state = begun()
    core.steps = 0
    events = tuple(committed(RAISES if number % 2 else 4) for number in range(512))
    stepped = GuardedCore("r").step(state, 2.0, Observation(nodes=nodes(fence=1), events=events))
    assert core.steps <= MOST_TRIES + 1
    assert fences(stepped.state) == dict.fromkeys(NODES, 1)


@pytest.mark.parametrize("bad", [("a",), ("d",), ("b", "c"), NODES], ids=str)
def test_nodes_that_raise_keep_their_old_states(core: Fragile, bad: tuple[str, ...]) -> None:
    stepped = GuardedCore("r").step(begun(), 2.0, Observation(nodes=nodes(*bad, fence=1), events=(committed(4),)))
    assert isinstance(stepped.error, KeyError)
    assert fences(stepped.state) == {name: int(name not in bad) for name in NODES}
    assert stepped.state.totals.checkpoints == 1


def test_a_node_that_raised_is_not_tried_again_for_a_while(core: Fragile) -> None:
    guarded, state = GuardedCore("r"), begun()
    state = guarded.step(state, 2.0, Observation(nodes=nodes("b", fence=1))).state
    core.steps = 0
    stepped = guarded.step(state, 3.0, Observation(nodes=nodes("b", fence=2)))
    assert (core.steps, stepped.error) == (1, None)
    assert fences(stepped.state) == {"a": 2, "b": 0, "c": 2, "d": 2}
    late = guarded.step(stepped.state, 2.0 + DISTRUST_S, Observation(nodes=nodes(fence=3)))
    assert fences(late.state) == dict.fromkeys(NODES, 3)


def test_a_request_that_raises_fails_alone(core: Fragile) -> None:
    bad, good = FaultRequest(Fault(kind="kill")), CheckpointRequest()
    stepped = GuardedCore("r").step(begun(), 2.0, Observation(nodes=nodes(), requests=(bad, good)))
    assert stepped.failed_requests == (bad,)
    assert len([action for action in stepped.actions if isinstance(action, CheckpointAnswered)]) == 1


def test_a_state_that_raises_is_kept_and_no_request_is_dropped_silently(core: Fragile) -> None:
    state, stop = begun(), StopRequest()
    core.always, core.steps = True, 0
    stepped = GuardedCore("r").step(state, 2.0, Observation(nodes=nodes(fence=1), requests=(stop,)))
    assert stepped.state is state
    assert (stepped.actions, stepped.failed_requests) == ([], (stop,))
    assert core.steps <= 3


def test_a_failure_is_logged_once_with_its_traceback(core: Fragile, caplog: pytest.LogCaptureFixture) -> None:
    guarded, state = GuardedCore("r"), begun()
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            guarded.step(state, 2.0, Observation(nodes=nodes(), events=(committed(RAISES),)))
    (record,) = caplog.records
    assert record.getMessage().startswith("run r: ")
    assert record.exc_info is not None
