"""Whose evidence a large run gathers: bounded, spread over nodes, and enough to name the calls of a verdict."""

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast_core.detectors.view import View
from holdfast_core.recovery.evidence_ranks import MOST_CHOSEN, chosen_ranks, nodes_to_ask
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from tests.support.ticks import START_UNIX_S, tick

PER_NODE = 8
STAGES = 4


def states(count: int, **fields: Any) -> Iterator[store.RankState]:
    for number in range(count):
        place = {"dp": number // STAGES, "pp": number % STAGES}
        yield store.RankState(rank=number, life=store.LIFE_RUNNING, process_state="S", coordinates=place, **fields)


def view_of(count: int, changed: Mapping[int, store.RankState] | None = None, **fields: Any) -> View:
    """Return ``count`` healthy ranks on nodes of eight; ``changed``: what differs of some of them."""
    ranks = list(states(count, **fields))
    for number, change in (changed or {}).items():
        ranks[number].MergeFrom(change)
    return tick(START_UNIX_S, ranks, {number: f"n{number // PER_NODE}" for number in range(count)})


def wait(waiter: int, seq: int = 7) -> store.WaitEdge:
    return store.WaitEdge(waiter=waiter, awaited=0, group="0", seq=seq)


def test_a_small_run_gathers_that_of_all_ranks() -> None:
    assert chosen_ranks(store.Verdict(culprits=[3]), view_of(MOST_CHOSEN)) == []
    assert chosen_ranks(store.Verdict(culprits=[3]), view_of(MOST_CHOSEN + 1)) == [0, 1, 2, 3, 7]


def test_culprits_come_with_some_that_wait_and_a_healthy_one_of_each_stage() -> None:
    verdict = store.Verdict(culprits=[801], waits=[wait(number) for number in range(100, 180)])
    chosen = chosen_ranks(verdict, view_of(4000), [801, 100])
    waiting = [number for number in chosen if 100 <= number < 180]
    assert len(waiting) == 13
    assert len({number // PER_NODE for number in waiting}) == 11
    assert [number for number in chosen if number not in waiting] == [0, 1, 2, 3, 801]


def test_one_rank_of_each_call_and_of_each_side_is_chosen_before_others() -> None:
    waits = [wait(number, seq=number // 50) for number in range(100, 400)]
    sides = [store.MismatchSide(ranks=range(500, 900)), store.MismatchSide(ranks=range(900, 1300))]
    verdict = store.Verdict(waits=waits, mismatch=store.MismatchDetail(sides=sides))
    assert {100, 150, 200, 250, 300, 350, 500, 900} <= set(chosen_ranks(verdict, view_of(4000)))


def test_of_thousands_that_died_or_are_stopped_a_few_are_chosen() -> None:
    ended = store.RankState(life=store.LIFE_EXITED)
    changed = dict.fromkeys(range(4, 4000, 2), ended) | {5: store.RankState(process_state="T")}
    verdict = store.Verdict(culprits=range(4, 4000, 2))
    chosen = chosen_ranks(verdict, view_of(4000, changed))
    assert set(range(4, 52, 2)) <= set(chosen)
    assert {0, 1, 2, 3, 5} <= set(chosen)
    assert len(chosen) == 24 + 12 + STAGES
    assert len({number // PER_NODE for number in chosen if number >= 52}) == 11


def test_never_more_than_a_stated_number_is_chosen_whatever_the_mesh() -> None:
    view = view_of(4000)
    for number, rank in view.ranks.items():
        rank.coordinates["ep"] = number
    chosen = chosen_ranks(store.Verdict(culprits=range(1000)), view, range(2000, 2016))
    assert len(chosen) == MOST_CHOSEN
    assert set(range(2000, 2016)) <= set(chosen)


def test_only_the_nodes_of_chosen_ranks_are_asked_unless_recorders_on_devices_decide() -> None:
    nodes = [f"n{number}" for number in range(500)]
    on_hosts, chosen = view_of(4000), [3, 801, 805]
    assert nodes_to_ask(nodes, on_hosts, chosen, recorders=True) == ["n0", "n100"]
    assert nodes_to_ask(nodes, on_hosts, [], recorders=True) == nodes
    nccl = common.Recorder(source=common.RECORDER_SOURCE_NCCL, backend="nccl")
    on_devices = view_of(4000, recorders=[nccl])
    assert nodes_to_ask(nodes, on_devices, chosen, recorders=True) == nodes
    assert nodes_to_ask(nodes, on_devices, chosen, recorders=False) == ["n0", "n100"]
