"""Hangs as states of ranks, and the ranks that are named for them."""

import itertools
from collections.abc import Sequence
from typing import Any, Self

import pytest

from holdfast_core.diagnosis.hosts.wait_graph import EDGES_KEPT, ArrivedCall, WaitAnalysis, analyse
from holdfast_proto.member_runs import runs_of
from holdfast_proto.v1 import common_pb2, store_pb2

SEND, RECV = common_pb2.DIRECTION_SEND, common_pb2.DIRECTION_RECV


class World:
    """All ranks of a run, alive and reporting, with the calls that a test gives them."""

    def __init__(self, size: int) -> None:
        self.ranks = {
            rank: store_pb2.RankState(rank=rank, life=store_pb2.LIFE_RUNNING, process_state="S", silent_s=0.1)
            for rank in range(size)
        }

    def group(self, name: str, enqueued: dict[int, int], *, completed: int | dict[int, int] = 0) -> Self:
        """Put ranks into a group at the given seqs. ``completed`` holds for all ranks, or gives one number per rank."""
        for rank, seq in enqueued.items():
            done = completed if isinstance(completed, int) else completed[rank]
            self.ranks[rank].progress.groups.add(
                group=name, member_runs=runs_of(sorted(enqueued)), enqueued=seq, completed=done
            )
        return self

    def set(self, rank: int, **fields: Any) -> Self:
        for name, value in fields.items():
            setattr(self.ranks[rank], name, value)
        return self

    def channel(self, rank: int, peer: int, direction: "common_pb2.Direction", enqueued: int, completed: int) -> Self:
        self.ranks[rank].progress.channels.add(
            group="pp", peer=peer, direction=direction, enqueued=enqueued, completed=completed
        )
        return self

    def analyse(self) -> WaitAnalysis:
        return analyse(self.ranks)


def edges(analysis: WaitAnalysis) -> list[tuple[int, int, str, int, str]]:
    return [(edge.waiter, edge.awaited, edge.group, edge.seq, edge.op) for edge in analysis.edges]


def test_rank_missing_in_a_collective_is_the_root() -> None:
    analysis = World(4).group("dp", {0: 7, 1: 7, 2: 6, 3: 7}, completed=6).analyse()
    assert (analysis.roots, analysis.group, analysis.seq, analysis.op) == ((2,), "dp", 7, "collective")
    assert edges(analysis) == [
        (0, 2, "dp", 7, "collective"),
        (1, 2, "dp", 7, "collective"),
        (3, 2, "dp", 7, "collective"),
    ]
    assert analysis.cycle == () and analysis.everyone_arrived == ()


def test_no_root_while_no_rank_waits() -> None:
    world = World(2).group("dp", {0: 6, 1: 6}, completed=6)
    assert world.analyse() == WaitAnalysis((), (), (), (), "", 0, "")


def test_no_ranks_no_finding() -> None:
    assert analyse({}).roots == ()


def test_waiting_is_followed_through_other_groups_to_the_rank_that_waits_for_nothing() -> None:
    world = World(4).group("tp0", {0: 5, 1: 4}, completed=4).group("tp1", {2: 4, 3: 4}, completed=4)
    world.group("dp0", {0: 2, 2: 3}, completed=2).group("dp1", {1: 2, 3: 3}, completed=2)
    analysis = world.analyse()
    assert analysis.roots == (1,)
    assert edges(analysis) == [
        (0, 1, "tp0", 5, "collective"),
        (3, 1, "dp1", 3, "collective"),
        (2, 0, "dp0", 3, "collective"),
    ]


def test_rank_stopped_in_the_middle_of_a_step_of_a_pipeline_is_the_root() -> None:
    """2 x 2 x 2 (pipeline, data, tensor): rank 5 has taken its input and not joined the tensor collective."""
    world = World(8).group("tp", {0: 12, 1: 12}, completed=12).group("tp", {2: 20, 3: 20}, completed=20)
    world.group("tp", {4: 11, 5: 10}, completed=10).group("tp", {6: 20, 7: 20}, completed=20)
    for first, last in ((0, 4), (1, 5)):
        world.channel(first, last, SEND, 3, 3).channel(first, last, RECV, 2, 1).channel(last, first, RECV, 2, 2)
        world.channel(last, first, SEND, 1, 1)
    for rank, partner in ((2, 0), (3, 1), (6, 4), (7, 5)):
        world.group(f"dp{rank}", {partner: 3, rank: 4}, completed=3)
    world.set(5, process_state="T").set(5, silent_s=9.0).set(4, stalled_s=3.2)
    world.set(7, stalled_s=3.0)
    analysis = world.analyse()
    assert (analysis.roots, analysis.group, analysis.seq) == ((5,), "tp", 11)
    assert {edge.waiter for edge in analysis.edges} == {0, 1, 2, 3, 4, 6, 7}


def test_rank_in_its_data_loader_is_the_root() -> None:
    world = World(4).group("dp", {0: 9, 1: 9, 2: 9, 3: 8}, completed=8)
    world.ranks[3].progress.phase = common_pb2.PHASE_DATA
    assert world.analyse().roots == (3,)


def test_of_several_calls_the_one_in_which_a_rank_has_waited_longest_is_reported() -> None:
    world = World(5).group("dp", {0: 8, 1: 8, 2: 8, 3: 7}, completed=7).group("tp", {3: 30, 4: 31}, completed=30)
    for rank, stalled_s in ((0, 2.0), (1, 2.1), (2, 2.2), (4, 2.9)):
        world.ranks[rank].stalled_s = stalled_s
    analysis = world.analyse()
    assert (analysis.group, analysis.seq, analysis.edges[0].group) == ("tp", 31, "tp")


def test_rank_that_has_never_entered_a_group_is_awaited_at_its_first_call() -> None:
    world = World(3).group("dp", {0: 1, 1: 1, 2: 0})
    del world.ranks[2].progress.groups[:]
    world.set(2, life=store_pb2.LIFE_STARTING)
    analysis = world.analyse()
    assert (analysis.roots, analysis.seq) == ((2,), 1)


def test_rank_of_which_nothing_is_known_is_the_root() -> None:
    world = World(3).group("dp", {0: 5, 1: 5, 2: 5}, completed=4)
    del world.ranks[2]
    assert world.analyse().roots == (2,)


def test_same_name_in_other_members_is_another_group() -> None:
    world = World(4).group("tp", {0: 5, 1: 5}, completed=5).group("tp", {2: 9, 3: 8}, completed=8)
    analysis = world.analyse()
    assert (analysis.roots, len(analysis.edges)) == ((3,), 1)


def test_exited_rank_comes_before_one_that_is_stuck() -> None:
    world = World(8).group("a", {0: 4, 1: 4, 2: 4, 3: 3}, completed=3).group("b", {4: 4, 5: 3}, completed=3)
    world.set(5, life=store_pb2.LIFE_EXITED)
    assert world.analyse().roots == (5, 3)


def test_roots_come_dead_then_stopped_then_silent_then_by_the_number_of_ranks_held_up() -> None:
    world = World(12)
    for rank in range(6):
        world.group(f"g{rank}", {rank: 3, rank + 6: 4}, completed=3)
    world.group("more", {2: 7, 6: 8, 7: 8}, completed=7).set(0, process_state="t").set(1, silent_s=60.0)
    world.set(3, process_state="Z")
    assert world.analyse().roots == (3, 0, 1, 2, 4, 5)


def test_ranks_held_up_through_others_count() -> None:
    world = World(6).group("a", {0: 1, 2: 2}, completed=1).group("b", {1: 1, 3: 2}, completed=1)
    world.group("c", {3: 1, 4: 2, 5: 2}, completed=1)
    assert world.analyse().roots == (1, 0)


def test_dead_rank_is_awaited_in_the_call_it_had_enqueued_and_not_completed() -> None:
    world = World(3).group("dp", {0: 5, 1: 5, 2: 5}, completed=4).set(1, life=store_pb2.LIFE_EXITED)
    analysis = world.analyse()
    assert (analysis.roots, analysis.seq, analysis.everyone_arrived) == ((1,), 5, ())


def test_stopped_rank_waits_for_no_rank_because_its_report_is_old() -> None:
    world = World(3).group("a", {0: 8, 1: 7}, completed=7).group("b", {1: 5, 2: 4}, completed=4)
    world.set(1, process_state="T")
    assert world.analyse().roots == (1,)


def test_silent_rank_waits_for_no_rank_because_its_report_is_old() -> None:
    world = World(4).group("a", {0: 8, 1: 7, 3: 8}, completed=7).group("b", {1: 5, 2: 4}, completed=4)
    world.set(1, silent_s=12.0)
    assert world.analyse().roots == (1,)


def test_silence_of_all_ranks_makes_none_of_them_suspect() -> None:
    world = World(3).group("a", {0: 8, 1: 7}, completed=7).group("b", {1: 5, 2: 4}, completed=4)
    for rank in world.ranks.values():
        rank.silent_s = 30.0
    assert world.analyse().roots == (2,)


def test_old_report_of_a_stopped_rank_does_not_move_the_call_at_which_it_is_missing() -> None:
    world = World(3).group("dp", {0: 9, 1: 9, 2: 6}, completed={0: 8, 1: 8, 2: 5}).set(2, process_state="T")
    assert world.analyse().seq == 9


def test_ranks_ahead_by_different_counts_name_the_one_behind_all() -> None:
    """Asynchronous collectives: each rank has enqueued as far as it could."""
    analysis = World(4).group("dp", {0: 9, 1: 7, 2: 6, 3: 8}, completed=6).analyse()
    assert (analysis.roots, {edge.awaited for edge in analysis.edges}) == ((2,), {2})


def test_many_members_that_are_behind_at_different_calls_hide_no_wait() -> None:
    world = World(100).group("dp", {0: 1000, **{rank: rank for rank in range(1, 100)}}, completed=999)
    for rank in range(1, 100):
        world.ranks[rank].progress.groups[0].completed = rank
    assert world.analyse().roots == tuple(range(1, 100))


def test_receiver_waits_for_the_sender_that_has_not_sent() -> None:
    analysis = World(2).channel(0, 1, RECV, 4, 3).channel(1, 0, SEND, 3, 3).analyse()
    assert (analysis.roots, edges(analysis)) == ((1,), [(0, 1, "pp", 4, "recv")])


def test_sender_waits_for_the_receiver_that_has_not_come() -> None:
    analysis = World(2).channel(0, 1, SEND, 6, 3).channel(1, 0, RECV, 4, 4).analyse()
    assert (analysis.roots, analysis.seq, analysis.op) == ((1,), 5, "send")


def test_sender_stuck_after_sending_ahead_is_the_root_though_its_sends_are_pending() -> None:
    """Rank 0 has sent ahead and is stuck in user code. Rank 1 waits for it through ranks 3 and 2."""
    world = World(4).channel(0, 1, SEND, 5, 3).channel(1, 0, RECV, 3, 3).group("right", {1: 8, 3: 7}, completed=7)
    world.channel(3, 2, RECV, 4, 3).channel(2, 3, SEND, 3, 3).group("left", {0: 7, 2: 8}, completed=7)
    analysis = world.analyse()
    assert (analysis.roots, analysis.cycle, analysis.group, analysis.op) == ((0,), (), "left", "collective")


def test_sender_is_not_named_when_the_rank_it_sends_to_is_stuck_on_its_own() -> None:
    world = World(3).channel(0, 1, SEND, 5, 3).group("left", {0: 7, 2: 8}, completed=7)
    assert world.analyse().roots == (1,)


def test_two_ranks_with_nothing_but_sends_to_each_other_are_both_named() -> None:
    analysis = World(2).channel(0, 1, SEND, 1, 0).channel(1, 0, SEND, 1, 0).analyse()
    assert (analysis.roots, analysis.cycle) == ((0, 1), ())


def test_two_ranks_whose_stacks_show_that_they_wait_in_their_sends_are_a_cycle() -> None:
    world = World(2).channel(0, 1, SEND, 1, 0).channel(1, 0, SEND, 1, 0)
    assert analyse(world.ranks, in_calls={0, 1}).cycle == (0, 1)
    assert analyse(world.ranks, in_calls={0}).roots == (1,)


def test_two_orders_of_the_same_calls_are_a_cycle_that_starts_with_the_odd_rank_out() -> None:
    world = World(5).group("a", {0: 4, 1: 4, 2: 3, 3: 4, 4: 4}, completed=3)
    world.group("b", {0: 6, 1: 6, 2: 7, 3: 6, 4: 6}, completed=6)
    analysis = world.analyse()
    assert (analysis.cycle, analysis.roots, analysis.group, analysis.seq) == ((2, 0), (), "a", 4)
    within = [(2, 0, "b", 7, "collective"), (0, 2, "a", 4, "collective")]
    assert edges(analysis)[:5] == [*within, *((rank, 2, "a", 4, "collective") for rank in (1, 3, 4))]


@pytest.mark.parametrize("size", [72, 600])
def test_the_waits_within_a_cycle_are_kept_however_many_ranks_wait_for_it(size: int) -> None:
    world = World(size).group("world", {rank: 5 if rank == size - 2 else 6 for rank in range(size)}, completed=5)
    world.group("tp", {size - 2: 9, size - 1: 8}, completed=8)
    analysis = world.analyse()
    assert analysis.cycle == (size - 2, size - 1)
    assert [edge[:2] for edge in edges(analysis)[:2]] == [(size - 2, size - 1), (size - 1, size - 2)]
    assert len(analysis.edges) == len(set(edges(analysis))) <= EDGES_KEPT


def test_cycle_through_three_groups_is_reported_in_the_order_of_waiting() -> None:
    world = World(4).group("a", {0: 2, 1: 1}, completed=1).group("b", {1: 2, 2: 1}, completed=1)
    world.group("c", {2: 2, 0: 1}, completed=1).group("d", {3: 2, 0: 1}, completed=1)
    assert world.analyse().cycle == (0, 1, 2)


def test_two_receivers_that_face_each_other_are_a_cycle() -> None:
    assert World(2).channel(0, 1, RECV, 1, 0).channel(1, 0, RECV, 1, 0).analyse().cycle == (0, 1)


def test_cycle_that_waits_for_a_dead_rank_is_no_cycle() -> None:
    world = World(3).group("a", {0: 4, 1: 3}, completed=3).group("b", {0: 6, 1: 7}, completed=6)
    world.group("c", {1: 2, 2: 1}, completed=1).set(2, life=store_pb2.LIFE_EXITED)
    analysis = world.analyse()
    assert (analysis.roots, analysis.cycle) == ((2,), ())


def test_when_all_have_arrived_the_call_that_does_not_complete_is_named() -> None:
    world = World(3).group("dp", {0: 5, 1: 5, 2: 6}, completed={0: 5, 1: 4, 2: 4})
    world.ranks[2].progress.groups[0].enqueued = 5
    analysis = world.analyse()
    assert analysis.roots == () and analysis.cycle == ()
    assert analysis.everyone_arrived == (ArrivedCall("dp", 5, (0, 1, 2), "collective", held=(1, 2)),)
    assert (analysis.group, analysis.seq) == ("dp", 5)


def test_message_sent_and_not_received_is_a_suspicion_of_the_transport() -> None:
    analysis = World(2).channel(0, 1, RECV, 4, 3).channel(1, 0, SEND, 4, 4).analyse()
    assert (analysis.roots, analysis.everyone_arrived) == ((), (ArrivedCall("pp", 4, (0, 1), "recv", held=(0,)),))


def test_group_without_known_members_shows_nothing() -> None:
    world = World(2)
    world.ranks[0].progress.groups.add(group="unknown", enqueued=3, completed=2)
    assert world.analyse().roots == ()


def group_ranks(size: int, group: int, stride: int) -> Sequence[int]:
    return range(group * size, (group + 1) * size) if stride == 1 else range(group, size * stride, stride)


def test_one_rank_of_ten_thousand_is_named() -> None:
    """Tensor groups of 8 and data groups of 1,250; one rank misses a tensor call, its data peers wait at the next."""
    culprit, tensor, data = 4321, 8, 1250
    world = World(tensor * data)
    stuck_group = set(group_ranks(tensor, culprit // tensor, 1))
    for group in range(data):
        members = group_ranks(tensor, group, 1)
        stuck = culprit in members
        world.group("tp", {rank: 40 if rank == culprit else 41 for rank in members}, completed=40 if stuck else 41)
    for group in range(tensor):
        members = group_ranks(data, group, tensor)
        world.group("dp", {rank: 6 if rank in stuck_group else 7 for rank in members}, completed=6)
    for rank in stuck_group - {culprit}:
        world.ranks[rank].stalled_s = 4.0
    analysis = world.analyse()
    assert (analysis.roots, analysis.group, analysis.seq) == ((culprit,), "tp", 41)
    assert {edge.waiter for edge in analysis.edges[: tensor - 1]} == stuck_group - {culprit}
    assert len(analysis.edges) == EDGES_KEPT
    direct = list(itertools.takewhile(lambda edge: edge.awaited == culprit, analysis.edges))
    assert direct == list(analysis.edges)


def test_mismatched_order_among_many_ranks_stays_a_cycle_of_two() -> None:
    ranks = range(1250)
    world = World(1250).group("a", {rank: 3 if rank % 2 else 4 for rank in ranks}, completed=3)
    world.group("b", {rank: 7 if rank % 2 else 6 for rank in ranks}, completed=6)
    assert world.analyse().cycle == (0, 1)


@pytest.mark.parametrize("field", ["groups", "device_groups"])
@pytest.mark.parametrize("source", [common_pb2.RECORDER_SOURCE_NCCL, common_pb2.RECORDER_SOURCE_BACKEND])
def test_numbers_of_a_device_recorder_make_no_rank_wait(field: str, source: "common_pb2.RecorderSource") -> None:
    world = World(2).group("0", {0: 8, 1: 7}, completed=7)
    assert edges(world.analyse()) == [(0, 1, "0", 8, "collective")]  # of gloo they would
    for rank in world.ranks.values():
        (group,) = rank.progress.groups
        group.source = source
        if field == "device_groups":
            rank.progress.device_groups.append(group)
            rank.progress.ClearField("groups")
    assert edges(world.analyse()) == []
    assert not world.analyse().roots


@pytest.mark.parametrize("size", [64, 1000])
def test_each_edge_says_how_many_ranks_wait_in_its_call(size: int) -> None:
    world = World(size).group("dp", {rank: 6 if rank == 5 else 7 for rank in range(size)}, completed=6)
    world.group("tp", {4: 2, 5: 1}, completed=1)
    analysis = world.analyse()
    counts = {(edge.group, edge.waiters) for edge in analysis.edges}
    assert counts == {("dp", size - 1), ("tp", 1)}
    assert analysis.waiting == size - 1
    assert len(analysis.edges) <= EDGES_KEPT
