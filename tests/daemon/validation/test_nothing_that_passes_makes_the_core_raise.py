"""Random messages that pass the checks never make the core raise."""

import itertools
import math
import random
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from holdfast_core import coordinator
from holdfast_core.model import DetectorFailed, Observation
from holdfast_daemon.validation.intake import Intake
from holdfast_daemon.validation.refused_values import EventNumbers
from holdfast_proto import keys
from holdfast_proto.state_value import write_state
from holdfast_proto.v1 import store_pb2 as store
from tests.daemon.validation.test_event_rules import GOOD_EVENTS, good_event
from tests.support.core_world import World
from tests.support.run_keys import seal_of, sealed

INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: (-1, 0, 1, 44, 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-1, 0, 1, 5, 44, 2**52, 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 1, 2, 3, 5, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 1, 2, 5, 2**52, 2**64 - 1),
}
NUMBERS = (0.0, 0.1, 0.5, 1.0, 3.0, 100.0, 1e9, math.nan, math.inf, -1.0)
TEXTS = ("", "a", "S", "loss", "gradient", "0", "node0", "0001-dead-rank", "x\ny", "é")


def mutate(message: Message, chance: random.Random, ratio: float, depth: int = 0) -> None:
    """Change some fields of a message, and of the messages in it, to any values that they can have."""
    for field in message.DESCRIPTOR.fields:
        if chance.random() > ratio or (field.message_type and field.message_type.GetOptions().map_entry):
            continue
        value: Any = getattr(message, field.name)
        if field.is_repeated and field.message_type:
            if chance.random() < 0.4:
                value.add()
            for item in value:
                mutate(item, chance, ratio, depth + 1)
        elif field.is_repeated:
            if field.cpp_type in INTEGERS:
                value[:] = [chance.choice(INTEGERS[field.cpp_type]) for _ in range(chance.randrange(4))]
        elif field.message_type:
            if message.HasField(field.name) or (depth and chance.random() < 0.3):
                mutate(value, chance, ratio, depth + 1)
        elif field.name not in ("run", "node") or depth:
            setattr(message, field.name, anything(field, chance))


def anything(field: Any, chance: random.Random) -> Any:
    if field.cpp_type in INTEGERS:
        return chance.choice(INTEGERS[field.cpp_type])
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return chance.choice([*(value.number for value in field.enum_type.values), 77])
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return chance.random() < 0.5
    if field.type == FieldDescriptor.TYPE_BYTES:
        return chance.randbytes(3)
    return chance.choice(TEXTS if field.cpp_type == FieldDescriptor.CPPTYPE_STRING else NUMBERS)


SEAL = seal_of("r")
COUNT = itertools.count(1)


def begun(chance: random.Random) -> World:
    """Return a run that trains, stands still, or has lost a rank."""
    world = World(nodes=2, ranks_per_node=2)
    world.until("starting")
    world.tick()
    world.train(chance.randrange(1, 6))
    if chance.random() < 0.5:
        world.end(1, signal=9)
    elif chance.random() < 0.5:
        world.hang(0)
    return world


@pytest.mark.parametrize("seed", range(20))
def test_nothing_that_passes_makes_the_core_raise(seed: int) -> None:
    chance = random.Random(seed)
    passed = refused = 0
    for _ in range(10):
        world, intake = begun(chance), Intake("r", SEAL)
        for _ in range(12):
            ratio = chance.choice([0.02, 0.1, 0.3])
            raw: dict[str, bytes | None] = {}
            for name, known in world.node_states.items():
                node = store.NodeState()
                node.CopyFrom(known)
                mutate(node, chance, ratio)
                raw[name] = SEAL.close(keys.node("r", name), write_state(node), next(COUNT))
            nodes = intake.nodes(raw, world.spec, world.state.record.nodes)
            events = []
            for _ in range(chance.randrange(4)):
                event = good_event(chance.choice(list(GOOD_EVENTS)))
                event.node, event.generation = chance.choice(["node0", "node1"]), world.state.record.generation
                mutate(event, chance, ratio)
                taken = intake.event(sealed(keys.events("r"), event, run="r"), world.spec, EventNumbers({}))
                events += [taken] if taken is not None else []
            world.now += chance.choice([0.1, 1.0, 30.0])
            world.state, actions = coordinator.step(
                world.state, world.now, Observation(nodes=nodes, events=tuple(events))
            )
            assert [action for action in actions if isinstance(action, DetectorFailed)] == []
            passed += len(nodes) + len(events)
        refused += sum(intake.refusals.counts.values())
    assert passed > 100
    assert refused > 10
