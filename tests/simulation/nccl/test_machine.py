"""The simulated machine: healthy programs end, faults are deadlocks, and streams keep the order of CUDA and NCCL."""

import random
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from tests.simulation.nccl import actions
from tests.simulation.nccl.actions import Action, Collective, Kernel, Message, Messages, NewGroups, Python, Sync, Wait
from tests.simulation.nccl.cases import one_case
from tests.simulation.nccl.faults import FAULTS
from tests.simulation.nccl.machine import Machine, Settings
from tests.simulation.nccl.programs import LAYOUTS, random_program


def all_reduce(*, group: int = 0, numel: int = 4, handle: int | None = None) -> Collective:
    return Collective(group, "all_reduce", ((numel,),), ((numel,),), ("all_reduce", numel), handle=handle)


def send(peer: int, handle: int, group: int = 0) -> Messages:
    return Messages(group, (Message(True, peer, 4),), False, handle)


def receive(peer: int, handle: int, group: int = 0) -> Messages:
    return Messages(group, (Message(False, peer, 4),), False, handle)


def batch(*parts: Message, handle: int = 1) -> list[Action]:
    return [Messages(0, parts, True, handle), Wait((handle,))]


def run(
    *ranks: Sequence[Action], settings: Settings | None = None, groups: Sequence[actions.Group] = (), **events: Any
) -> Machine:
    world = actions.Group("0", "default_pg", tuple(range(len(ranks))))
    program = actions.Program([world, *groups], [list(rank) for rank in ranks], "by hand")
    return Machine(program, settings or Settings(eager_init=True), **events).run()


def times(machine: Machine, rank: int) -> list[tuple[float, float]]:
    """Return when the recorded operations of a rank start and end."""
    entries = machine.recorders[rank].entries
    return [(entry.operation.start_s, entry.operation.done_s) for entry in entries if entry.operation]


@pytest.mark.parametrize("eager_init", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_healthy_programs_end(layout: str, eager_init: bool) -> None:
    for seed in range(8):
        chance = random.Random(seed)
        settings = Settings(
            eager_init=eager_init,
            launch_limit=chance.choice((16, 100, 1000)),
            eager_numel=chance.choice((0, 10_000)),
            blocking_wait=seed == 0,
        )
        machine = Machine(random_program(seed, layout, 16), settings).run()
        assert machine.finished
        assert all(done_s < inf for rank in range(machine.program.world_size) for _, done_s in times(machine, rank))


@pytest.mark.parametrize("kind", sorted(set(FAULTS) - {"healthy"}))
def test_a_fault_ends_in_a_deadlock_for_good(kind: str) -> None:
    for number in range(4):
        machine = one_case(f"deadlock {number}", [kind], 8).machine
        assert not machine.finished and not machine.network.woken
        places = [(host.at, host.now_s) for host in machine.hosts]
        assert [(host.at, host.now_s) for host in machine.run().hosts] == places


@pytest.mark.parametrize("kind", sorted(FAULTS))
def test_the_same_seed_gives_the_same_case(kind: str) -> None:
    first, second = (one_case("same", [kind], 8) for _ in range(2))
    assert (first.truth, first.documents, first.stacks) == (second.truth, second.documents, second.stacks)


@pytest.mark.parametrize("kind", sorted(FAULTS))
def test_the_culprits_are_those_of_the_fault_whatever_is_recorded(kind: str) -> None:
    for number in range(4):
        case = one_case(f"truth {number}", [kind], 8)
        none = {"healthy", "program_hang", "network", "network_pair"}
        assert bool(case.truth.culprits) == (kind not in none)
        assert len(case.truth.culprits) <= {"dead_node": 4, "several": 3}.get(kind, 2)
        if case.truth.decidable:
            assert case.truth.shown <= case.truth.culprits <= case.truth.may_name
            assert case.truth.shown
        elif kind in none:
            assert not case.truth.may_name


def test_a_collective_ends_on_all_ranks_when_the_last_has_come() -> None:
    machine = run([all_reduce()], [Python(3.0), all_reduce()], [Python(1.0), all_reduce()])
    (first,), (late,), _ = (times(machine, rank) for rank in range(3))
    assert first[0] < 0.1
    assert late[0] >= 3.0
    assert first[1] == late[1] > 3.0


def test_a_synchronous_collective_keeps_its_place_in_the_current_stream() -> None:
    program: list[Action] = [Kernel(2.0), all_reduce(), Kernel(5.0), all_reduce()]
    machine = run(program, program)
    (start_s, done_s), (next_s, _) = times(machine, 0)
    assert start_s >= 2.0
    assert next_s >= done_s + 5.0
    assert machine.hosts[0].now_s < 1.0  # the host is far ahead


def test_an_asynchronous_collective_runs_beside_kernels_until_it_is_waited_for() -> None:
    program: list[Action] = [Kernel(1.0), all_reduce(handle=1), Kernel(5.0), Wait((1,)), all_reduce(), Sync()]
    machine = run(program, program)
    (start_s, done_s), (next_s, _) = times(machine, 0)
    assert 1.0 <= start_s < done_s < 2.0
    assert next_s >= 6.0
    assert machine.hosts[0].now_s >= 6.0  # ``.item()`` let the host wait


def test_a_full_launch_queue_blocks_the_host_in_its_call() -> None:
    program: list[Action] = [*[Kernel(1.0)] * 5, all_reduce()]
    machine = run(program, program, settings=Settings(eager_init=True, launch_limit=3))
    entry = machine.recorders[0].entries[0]
    assert entry.created_s >= 1.0  # the fifth kernel was launched when the second had ended
    assert entry.returned_s >= 3.0 > entry.created_s


def test_a_lazy_communicator_is_made_when_all_are_there_and_before_anything_is_recorded() -> None:
    program: list[Action] = [all_reduce()]
    hung = run(program, [Python(inf), *program], settings=Settings())
    assert hung.hosts[0].phase == "init"
    assert not hung.recorders[0].entries and not hung.recorders[0].named_s
    assert hung.recorders[0].collectives(0) == 1
    made = run(program, [Python(7.0), *program], settings=Settings())
    assert made.recorders[0].entries[0].created_s > 7.0


def test_calls_of_one_communicator_keep_their_order_on_different_streams() -> None:
    calls: list[Action] = [all_reduce(handle=1), all_reduce()]
    machine = run(calls, [Python(3.0), *calls])
    (_, first_s), (second_s, _) = times(machine, 0)
    assert 3.0 < first_s <= second_s


@pytest.mark.parametrize("eager_init", [False, True])
def test_a_group_is_made_when_the_whole_world_is_there(eager_init: bool) -> None:
    groups = [actions.Group("1", "mesh_tp", (0, 1))]
    for away_s, phase in ((inf, "groups"), (5.0, "")):
        ranks: list[list[Action]] = [[NewGroups((1,))], [NewGroups((1,))], [Python(away_s), NewGroups((1,))]]
        machine = run(*ranks, settings=Settings(eager_init=eager_init), groups=groups)
        assert [host.phase for host in machine.hosts[:2]] == [phase] * 2
        made = away_s < inf
        assert [recorder.ids for recorder in machine.recorders] == [{0: 0, 1: 1} if made else {0: 0}] * 2 + [{0: 0}]
        assert (1 in machine.recorders[0].named_s) == (made and eager_init)
        assert made == machine.finished
        if made:
            assert all(host.now_s > away_s for host in machine.hosts)


def test_messages_meet_unless_they_are_small_enough_for_the_buffers() -> None:
    lone: list[Action] = [send(1, 1), Wait((1,)), Sync()]
    assert not run(lone, []).finished
    assert run(lone, [], settings=Settings(eager_init=True, eager_numel=4)).finished
    machine = run(lone, [Python(2.0), receive(0, 1)])
    assert machine.finished
    assert times(machine, 0)[0][1] == times(machine, 1)[0][1] > 2.0


def test_the_root_of_a_small_broadcast_does_not_wait() -> None:
    call = replace(all_reduce(), op="broadcast", fits=("broadcast", 4))
    for numel, ends in ((4, True), (0, False)):
        settings = Settings(eager_init=True, eager_numel=numel)
        machine = run([call, Sync()], [Python(inf)], [call, Sync()], settings=settings)
        assert (machine.hosts[0].phase == "") == ends
        assert machine.hosts[2].phase == "sync"


def test_messages_of_a_pair_meet_in_their_order() -> None:
    machine = run([send(1, 1), Kernel(1.0), send(1, 2)], [receive(0, 1), receive(0, 2)])
    assert times(machine, 0) and [done for _, done in times(machine, 0)] == [done for _, done in times(machine, 1)]


def test_unbatched_messages_have_a_stream_for_each_pair_only_without_eager_init() -> None:
    # The message from 2 is late: does it hold up the one from 1?
    ranks: list[list[Action]] = [[receive(2, 1), receive(1, 2)], [send(0, 1)], [Kernel(4.0), send(0, 1)]]
    assert times(run(*ranks, settings=Settings(eager_init=True)), 0)[1][1] > 4.0
    assert times(run(*ranks, settings=Settings(eager_init=False)), 0)[1][1] < 1.0


def test_calls_that_do_not_fit_never_end() -> None:
    machine = run([all_reduce()], [all_reduce(numel=5)])
    assert [start_s < inf for start_s, _ in times(machine, 0) + times(machine, 1)] == [True, True]
    assert [done_s for _, done_s in times(machine, 0) + times(machine, 1)] == [inf, inf]


def test_a_call_that_never_ends_on_one_rank_blocks_its_stream_alone() -> None:
    stuck = replace(all_reduce(), never_ends=True)
    machine = run([all_reduce(), all_reduce(), Sync()], [stuck, all_reduce(), Sync()])
    first, second = times(machine, 0)
    assert first[1] < inf and second[0] < inf and second[1] == inf
    (start_s, done_s), (later_s, _) = times(machine, 1)
    assert start_s < inf and done_s == later_s == inf
    assert [host.phase for host in machine.hosts] == ["sync", "sync"]


def test_a_killed_process_leaves_what_was_under_way_unfinished() -> None:
    program: list[Action] = [all_reduce(), Kernel(2.0), all_reduce(), Sync()]
    machine = run(program, program, dies_s={1: 1.0})
    first, second = times(machine, 0)
    assert first[1] < 1.0
    assert second[0] < inf and second[1] == inf
    assert machine.hosts[0].phase == "sync"


def test_a_broken_network_ends_nothing_that_starts_later() -> None:
    program: list[Action] = [all_reduce(), Kernel(2.0), all_reduce()]
    machine = run(program, program, broken={0: (1.0, None)})
    for rank in (0, 1):
        first, second = times(machine, rank)
        assert first[1] < inf and second[0] < inf and second[1] == inf
