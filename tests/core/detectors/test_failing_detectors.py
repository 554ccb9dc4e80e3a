"""A detector that raises, wherever the core calls it. The others are called as usual."""

from dataclasses import dataclass
from typing import ClassVar, Self

import pytest

from holdfast_core.detectors import registry
from holdfast_core.detectors.framework import Detector, DetectorResult
from holdfast_core.detectors.hangs.root_ranks import HungCollective
from holdfast_core.detectors.view import View
from holdfast_core.model import Action, DetectorFailed
from tests.support.core_world import World


@dataclass(frozen=True)
class Broken(Detector):
    """A detector that raises in every call."""

    name: ClassVar[str] = registry.HANGS[0].name

    def see_tick(self, view: View) -> DetectorResult:
        raise KeyError("a bug")

    def restarted(self, after_step: int) -> Self:
        raise ValueError("another bug")


@pytest.fixture
def world() -> World:
    world = World()
    world.until("starting")
    world.tick()
    world.train(5)
    detectors = {**world.state.detectors, Broken.name: Broken()}
    object.__setattr__(world.state, "detectors", detectors)
    return world


def failed(actions: list[Action]) -> set[str]:
    return {action.reason for action in actions if isinstance(action, DetectorFailed)}


def test_a_hang_is_suspected_and_judged_by_the_other_detectors(world: World) -> None:
    assert Broken.name != HungCollective.name
    reasons: set[str] = set()
    for _ in range(200):
        reasons |= failed(world.tick())
        if world.state.suspicion is not None:
            break
    assert world.state.suspicion is not None
    assert reasons == {"KeyError: 'a bug'"}


def test_a_restart_replaces_a_detector_that_fails_to_hear_of_it(world: World) -> None:
    world.end(3, signal=9)
    reasons: set[str] = set()
    for _ in range(200):
        reasons |= failed(world.tick())
        if world.state.record.generation == 2:
            break
    assert world.state.record.generation == 2
    assert "ValueError: another bug" in reasons
    assert type(world.state.detectors[Broken.name]) is Broken
