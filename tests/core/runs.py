"""Runs at some moment of their story, and what may happen to several of their ranks."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from holdfast_core.model import Action
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from tests.support.core_world import TICK_S, World


def running(*, steps: int = 5, **options: Any) -> World:
    """Return a run that trains."""
    world = World(**options)
    world.until("starting")
    world.train(steps)
    assert world.phase == "running"
    return world


def hung(culprit: int = 1, *, moving: Collection[int] = (), stood_s: float = 0.0, **options: Any) -> World:
    """Return a run whose ranks wait for one of them, ``stood_s`` seconds later. ``moving``: as in a world."""
    world = running(**options)
    world.hang(culprit)
    world.moving = set(moving)
    world.stand(stood_s)
    return world


def enter_phase(world: World, phase: "common.Phase", *numbers: int) -> None:
    """Let ranks be in a phase of their step; by default all."""
    for number in numbers or range(world.world_size):
        world.rank(number).progress.phase = phase


def set_ranks(world: World, *numbers: int, **fields: Any) -> None:
    """Set fields of the states of ranks; by default of all."""
    for number in numbers or range(world.world_size):
        for name, value in fields.items():
            setattr(world.rank(number), name, value)


def end_ranks(world: World, *numbers: int, **how: Any) -> None:
    """End ranks in the same way, one after the other."""
    for number in numbers:
        world.end(number, **how)


def send_event(world: World, *, node: str = "node0", seconds: float = TICK_S, **event: Any) -> list[Action]:
    """Let a node send an event, and the leader take it in."""
    world.events.append(store.Event(node=node, **event))
    return world.tick(seconds=seconds)


def restart(world: World) -> None:
    """Wait until the present generation is stopped and the next one starts."""
    world.until("stopping")
    world.until("starting")


def restarted_after_s(world: World, at_most_s: float = 400.0) -> float:
    """Return the seconds until the run is restarted."""
    began = world.now
    while world.phase == "running":
        assert world.now - began < at_most_s, "no restart"
        world.tick(seconds=0.2)
    return world.now - began


@contextmanager
def edited_record(world: World) -> Iterator[store.CoordinatorState]:
    """Yield a copy of the run's record, which replaces it at the end of the block."""
    record = store.CoordinatorState()
    record.CopyFrom(world.state.record)
    yield record
    object.__setattr__(world.state, "record", record)
