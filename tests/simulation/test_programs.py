"""Ranks that stop forever at any moment of a 3D-parallel step are named, and no others are."""

import random

import pytest

from holdfast_core.deadlines import Deadlines
from holdfast_core.detectors.hangs.root_ranks import HungCollective
from holdfast_core.detectors.view import View
from holdfast_core.diagnosis.hosts.wait_graph import analyse
from holdfast_proto.v1 import store_pb2 as store
from tests.simulation.machine import Machine
from tests.simulation.programs import Do, Layout, Programs, random_layout, training

SMALL = Layout(prefetches=False)


def view_of(ranks: dict[int, store.RankState]) -> View:
    deadlines = Deadlines.for_preset(store.PRESET_DEFAULT)
    for _ in range(3):
        deadlines = deadlines.observe(0.3, {})
    return View(
        now=1000.0,
        world_size=len(ranks),
        ranks=ranks,
        node_of={rank: f"node{rank // 8}" for rank in ranks},
        missing_nodes={},
        deadlines=deadlines,
        first_exit_unix_s=0.0,
        stacks={},
    )


def named_by_detector(ranks: dict[int, store.RankState]) -> list[int]:
    result = HungCollective().see_tick(view_of(ranks))
    return [rank for finding in result.findings for rank in finding.verdict.culprits]


def hang_at_random(seed: int) -> tuple[Machine, int]:
    """Return a world in which one rank has stopped at a random moment."""
    programs = training(random_layout(seed))
    chance = random.Random(seed)
    culprit = chance.randrange(len(programs.calls))
    machine = Machine(
        programs, {culprit: chance.randrange(len(programs.calls[culprit]))}, eager_sends=chance.random() < 0.5
    )
    return machine.run(), culprit


def someone_waits(machine: Machine) -> bool:
    programs = machine.programs.calls
    return any(at < len(programs[rank]) for rank, at in enumerate(machine.at) if rank not in machine.stuck)


def names_what_it_misses(machine: Machine, culprit: int, programs: Programs) -> bool:
    """Return whether the reported call is the culprit's next one in its group, and others are in it."""
    analysis = analyse(machine.states())
    if analysis.op == "collective":
        ids = [i for i, g in enumerate(programs.groups) if g.name == analysis.group and culprit in g.members]
        return analysis.seq == machine.entered[culprit, ids[0]] + 1
    peer = analysis.edges[0].waiter
    if analysis.op == "recv":
        return analysis.seq == machine.sent[culprit, peer] + 1
    return analysis.seq == machine.posted[peer, culprit] + 1


@pytest.mark.parametrize("eager_sends", [True, False], ids=["buffered_sends", "rendezvous_sends"])
@pytest.mark.parametrize("culprit", range(SMALL.world_size))
def test_rank_stuck_before_any_call_of_a_step_is_the_only_root(culprit: int, eager_sends: bool) -> None:
    programs = training(SMALL)
    for calls, (do, _) in enumerate(programs.calls[culprit]):
        if do in (Do.WAIT, Do.WAIT_RECV):
            continue  # it has just posted what it would wait for
        machine = Machine(programs, {culprit: calls}, eager_sends=eager_sends).run()
        analysis = analyse(machine.states())
        assert (analysis.roots, analysis.cycle) == ((culprit,), ()), f"stuck after {calls} calls"
        assert names_what_it_misses(machine, culprit, programs), f"stuck after {calls} calls"


def test_an_undisturbed_step_ends_with_no_rank_waiting() -> None:
    machine = Machine(training(SMALL), {}, eager_sends=False).run()
    assert not someone_waits(machine)
    analysis = analyse(machine.states())
    assert analysis.edges == () and analysis.everyone_arrived == ()


@pytest.mark.parametrize("seeds", [range(first, first + 75) for first in range(0, 300, 75)], ids=str)
def test_of_any_layout_counters_alone_name_no_innocent_rank(seeds: range) -> None:
    """A call that the culprit has posted ahead makes it look held up. It is in the deadlock then, and none is named."""
    for seed in seeds:
        machine, culprit = hang_at_random(seed)
        analysis = analyse(machine.states())
        if not someone_waits(machine):
            continue
        assert analysis.everyone_arrived == (), f"seed {seed}"
        if analysis.roots:
            assert analysis.roots == (culprit,), f"seed {seed}"
            assert names_what_it_misses(machine, culprit, machine.programs), f"seed {seed}"
        else:
            assert culprit in analysis.deadlock, f"seed {seed}"


@pytest.mark.parametrize("sign", ["thread_state", "process_state", "silent_s"])
def test_with_what_the_culprit_does_it_is_named_whatever_it_has_posted_ahead(sign: str) -> None:
    values = {"thread_state": "R", "process_state": "T", "silent_s": 9.0}
    for seed in range(100):
        machine, culprit = hang_at_random(seed)
        if not someone_waits(machine):
            continue
        ranks = machine.states()
        setattr(ranks[culprit], sign, values[sign])
        assert named_by_detector(ranks) == [culprit], f"seed {seed}"


def test_of_two_ranks_that_stop_only_these_are_named() -> None:
    for seed in range(100):
        programs = training(random_layout(seed))
        chance = random.Random(seed)
        stuck = {
            rank: chance.randrange(len(programs.calls[rank]))
            for rank in chance.sample(range(len(programs.calls)), min(2, len(programs.calls)))
        }
        machine = Machine(programs, stuck).run()
        if not someone_waits(machine):
            continue
        ranks = machine.states()
        for rank in stuck:
            ranks[rank].thread_state = "R"
        named = named_by_detector(ranks)
        assert named and set(named) <= set(stuck), f"seed {seed}"


def test_ranks_that_call_in_two_orders_are_a_deadlock_of_both() -> None:
    programs = training(SMALL)
    calls = list(programs.calls)
    *before, enter_tensor, wait_tensor, enter_world, wait_world = calls[3]
    calls[3] = (*before, enter_world, wait_world, enter_tensor, wait_tensor)
    analysis = analyse(Machine(Programs(programs.groups, tuple(calls)), {}).run().states())
    assert analysis.roots == ()
    assert set(analysis.cycle) == {2, 3}


def test_one_rank_of_a_thousand_is_named() -> None:
    programs = training(Layout(data=32, tensor=4, pipeline=8, experts=4, microbatches=8), steps=1)
    machine = Machine(programs, {517: 40}).run()
    ranks = machine.states()
    ranks[517].thread_state = "R"
    assert len(ranks) == 1024
    assert named_by_detector(ranks) == [517]
