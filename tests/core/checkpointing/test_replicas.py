"""Replica snapshots: their partners, and the commands that have them made."""

from collections import Counter
from collections.abc import Sequence

import pytest

from holdfast_core.checkpointing.replicas import LOOK_S, complete_step, partners
from holdfast_core.recovery.ending import RESEND_S
from tests.core.checkpointing.replicating import (
    EVERY_S,
    EVERY_STEPS,
    held,
    learn,
    look,
    newest,
    pass_time,
    replicating,
)
from tests.core.runs import edited_record, restart
from tests.support.core_world import World
from tests.support.replica_nodes import commanded, offer, replicate


@pytest.mark.parametrize("domains", ["ab", "aa", "abc", "aab", "aabb", "abab", "aaab", "aaaabbb", "aabbcd", "aabbccc"])
def test_every_node_has_a_partner_of_another_domain_if_no_domain_has_more_than_half_of_the_nodes(domains: str) -> None:
    nodes = [f"n{number}" for number in range(len(domains))]
    domain_of = dict(zip(nodes, domains, strict=True))
    found = partners(nodes, domain_of)
    assert sorted(found) == sorted(found.values()) == nodes
    assert all(node != partner for node, partner in found.items())
    largest = Counter(domains).most_common(1)[0][1]
    apart = sum(domain_of[node] != domain_of[partner] for node, partner in found.items())
    assert apart == min(len(nodes), 2 * (len(nodes) - largest))  # each node outside a large domain serves two pairs


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [([], {}), (["a"], {}), (["b", "a"], {"a": "b", "b": "a"}), (["c", "a", "b"], {"c": "a", "a": "b", "b": "c"})],
)
def test_nodes_without_a_domain_form_a_circle_in_the_order_of_their_ranks(
    nodes: Sequence[str], expected: dict[str, str]
) -> None:
    assert partners(nodes, {}) == expected


def test_all_nodes_get_one_step_ahead_at_whose_end_a_snapshot_is_due() -> None:
    world = replicating(domains=["x", "x", "y"])
    world.tick()
    sent = commanded(world)
    assert [(name, one.partner, one.address) for name, one in sent] == [
        ("node0", "node1", "node1:7000"),
        ("node1", "node2", "node2:7000"),
        ("node2", "node0", "node0:7000"),
    ]
    (step,) = {one.step for _, one in sent}
    assert step > world.rank(0).progress.step
    assert (step + 1) % EVERY_STEPS == 0
    assert not any(one.HasField("kept_step") for _, one in sent)


def no_address(world: World) -> None:
    world.node_states["node1"].replicas.address = ""


def no_interval(world: World) -> None:
    world.spec.replicate_every_s = 0.0


def no_snapshots(world: World) -> None:
    world.spec.snapshot_every = 0


def missing_node(world: World) -> None:
    del world.node_states["node2"]


def planned_end(world: World) -> None:
    world.rank(0).planned_steps = world.rank(0).progress.step + 1


@pytest.mark.parametrize("hinder", [no_address, no_interval, no_snapshots, missing_node, planned_end])
def test_none_are_commanded_that_cannot_be_made(hinder: object) -> None:
    world = replicating()
    assert callable(hinder)
    hinder(world)
    world.tick()
    assert commanded(world) == []


def test_a_single_node_has_no_partner() -> None:
    world = replicating(nodes=1)
    world.tick()
    assert commanded(world) == []


def test_the_next_ones_are_commanded_when_these_are_on_two_nodes_and_the_interval_is_over() -> None:
    world = replicating()
    world.tick()
    step = replicate(world)
    look(world)
    assert complete_step(world.state) == step
    world.train()
    assert len(commanded(world)) == 3
    pass_time(world, EVERY_S)
    assert len(commanded(world)) == 6
    assert newest(world).step > step
    assert newest(world).kept_step == step


def test_nodes_that_work_on_them_are_not_hurried() -> None:
    world = replicating()
    world.tick()
    learn(world)
    world.node_states["node0"].replicas.replicated_step = newest(world).step
    for _ in range(5):
        pass_time(world, EVERY_S)
    assert len(commanded(world)) == 3
    step = replicate(world)
    look(world)
    world.tick()
    assert newest(world).kept_step == step


def test_a_node_that_does_not_know_the_step_gets_the_command_again_and_the_others_do_not() -> None:
    world = replicating()
    world.tick()
    learn(world, "node0", "node2")
    pass_time(world, RESEND_S + 0.1)
    world.tick()
    assert [name for name, _ in commanded(world)] == ["node0", "node1", "node2", "node1"]
    assert len({one.step for _, one in commanded(world)}) == 1


def test_a_step_that_a_node_has_passed_without_knowing_it_is_given_up_until_the_interval_is_over() -> None:
    world = replicating()
    world.tick()
    learn(world, "node0", "node2")
    step = newest(world).step
    world.train(step + 2 - world.rank(0).progress.step)
    pass_time(world, RESEND_S + 0.1)
    world.tick()
    assert len(commanded(world)) == 3
    pass_time(world, EVERY_S)
    assert newest(world).step > step


def test_after_a_node_has_failed_the_next_ones_wait_for_the_interval_and_the_last_complete_ones_stay() -> None:
    world = replicating()
    world.tick()
    complete = replicate(world)
    look(world)
    pass_time(world, EVERY_S)
    learn(world)
    failed = newest(world).step
    world.node_states["node1"].replicas.failed = True
    look(world)
    world.train(2)
    assert newest(world).step == failed
    pass_time(world, EVERY_S)
    assert newest(world).step > failed
    assert newest(world).kept_step == complete
    assert complete_step(world.state) == complete


def test_the_pause_doubles_while_sets_fail_and_is_the_interval_again_after_one_that_is_complete() -> None:
    world = replicating()
    world.tick()

    def steps_in(seconds: float) -> int:
        known = newest(world).step
        pass_time(world, seconds)
        return newest(world).step - known

    for pause_s in (EVERY_S, 2 * EVERY_S, 4 * EVERY_S):
        learn(world)
        world.node_states["node1"].replicas.failed = True
        look(world)
        assert not steps_in(pause_s - 3 * LOOK_S)
        assert steps_in(3 * LOOK_S)
    learn(world)
    replicate(world)
    look(world)
    assert steps_in(EVERY_S)


def test_a_new_leader_keeps_what_the_nodes_show_to_be_complete() -> None:
    world = replicating()
    world.tick()
    step = replicate(world)
    world.lose_leader()
    world.train(3)
    assert newest(world).step > step
    assert newest(world).kept_step == step
    assert complete_step(world.state) == step


def test_a_new_leader_keeps_the_newest_set_with_one_copy_if_none_has_two() -> None:
    world = replicating(nodes=2)
    for step in (4, 9):
        world.node_states["node0"].replicas.held.append(held(step, 0, 1))
        world.node_states["node1"].replicas.held.append(held(step, 2, 3))
    world.node_states["node0"].replicas.held.append(held(14, 0, 1, 2))
    world.tick()
    assert newest(world).kept_step == 9
    assert complete_step(world.state) is None


def test_a_new_generation_forgets_the_step_and_takes_none_that_a_node_has_worked_on() -> None:
    world = replicating()
    world.tick()
    learn(world)
    first = newest(world).step
    world.end(0, signal=9)
    restart(world)
    world.train(2)
    assert newest(world).step > first
    assert world.state.replication is not None
    assert world.state.replication.generation == 2


def test_ranks_that_seem_to_stand_still_are_not_asked_for_any() -> None:
    world = replicating()
    with edited_record(world) as record:
        record.standstill_incident = "x"
    world.tick()
    assert commanded(world) == []


def test_a_node_that_joins_is_waited_for() -> None:
    world = replicating()
    world.node_states["node1"].ClearField("replicas")
    world.tick()
    assert commanded(world) == []
    offer(world.node_states["node1"])
    world.tick()
    assert len(commanded(world)) == 3


def test_complete_replica_snapshots_take_the_place_of_those_that_could_not_be_loaded() -> None:
    world = replicating()
    with edited_record(world) as record:
        record.unusable_replica = 4
    world.tick()
    replicate(world)
    look(world)
    assert not world.state.record.HasField("unusable_replica")
