"""The working copy of one tick: edits replace the state and the record, and change neither."""

from dataclasses import replace

import pytest

from holdfast_core import coordinator
from holdfast_core.model import Send, committed_steps
from holdfast_core.tick import Tick
from holdfast_proto.v1 import store_pb2 as store


@pytest.fixture
def tick() -> Tick:
    return Tick(coordinator.begin(store.RunSpec(run="r", nodes=1, ranks_per_node=2)), now=5.0)


def test_an_edit_of_the_record_replaces_it_at_the_end_of_the_block(tick: Tick) -> None:
    before = tick.state
    with tick.edit_record() as record:
        record.nodes[:] = ["a", "b"]
        assert not tick.record.nodes
    assert list(tick.record.nodes) == ["a", "b"]
    assert not before.record.nodes


def test_an_edit_that_raises_changes_nothing(tick: Tick) -> None:
    before = tick.state
    with pytest.raises(ZeroDivisionError), tick.edit_record() as record:
        record.outcome = str(1 / 0)
    assert tick.state is before


def test_another_phase_begins_now_and_nothing_has_been_sent_in_it(tick: Tick) -> None:
    tick.send(["a"], lambda _: store.NodeCommand(stop=store.StopGeneration()))
    tick.enter(store.RUN_PHASE_STOPPING)
    assert (tick.record.phase, tick.record.phase_since_unix_s) == (store.RUN_PHASE_STOPPING, 5.0)
    assert tick.state.sent_unix_s == 0.0


def test_a_command_is_for_the_present_generation_unless_it_names_another(tick: Tick) -> None:
    with tick.edit_record() as record:
        record.generation = 3
    tick.send(["a"], lambda _: store.NodeCommand(stop=store.StopGeneration()))
    tick.send(["b"], lambda _: store.NodeCommand(generation=2, stop=store.StopGeneration()))
    assert [action.command.generation for action in tick.actions if isinstance(action, Send)] == [3, 2]


def test_a_thing_is_new_once_in_a_generation(tick: Tick) -> None:
    assert [tick.once("x"), tick.once("x"), tick.once("y")] == [True, False, True]


def test_checkpoints_of_a_node_that_leaves_looking_to_others_count_if_no_other_one_knows_any() -> None:
    state = coordinator.begin(store.RunSpec(run="r", nodes=2, ranks_per_node=1))
    nodes = {
        "node0": store.NodeState(checkpoints=[20, 30]),
        "node1": store.NodeState(checkpoints=[10, 20], checkpoints_are_old=True),
    }
    assert committed_steps(replace(state, nodes=nodes)) == [20, 30]
    assert committed_steps(replace(state, nodes={"node1": nodes["node1"]})) == [10, 20]
