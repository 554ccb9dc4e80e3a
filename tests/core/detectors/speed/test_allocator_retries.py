"""Allocations that fail, or succeed only after the cache was emptied."""

import random
from collections.abc import Callable

from holdfast_core.detectors.speed.allocator_retries import OF_SAMPLES, AllocatorRetries
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.session_pb2 import MemoryStatus
from tests.support.ticks import ticks, watch

Count = Callable[[int, int], int]
"""(rank, minute) -> count so far."""


def verdicts_on(minutes: int, *, retries: Count = lambda *_: 0, ooms: Count = lambda *_: 0) -> list[store.Verdict]:
    def state(rank: int, minute: int) -> store.RankState:
        memory = MemoryStatus(reserved_bytes=1, alloc_retries=retries(rank, minute), ooms=ooms(rank, minute))
        return store.RankState(memory=memory)

    return watch(AllocatorRetries(), ticks(minutes, 4, state, every_s=60.0))[1]


def test_retries_in_three_of_ten_minutes_are_reported_once() -> None:
    (verdict,) = verdicts_on(60, retries=lambda rank, minute: minute // 2 if rank == 1 else 0)
    assert list(verdict.culprits) == [1]
    assert "the allocator of rank 1 found memory only by emptying its cache in 3 of 10 minutes" in verdict.message


def test_many_retries_in_one_minute_are_not_reported() -> None:
    assert verdicts_on(60, retries=lambda _, minute: 100 if minute > 20 else 0) == []


def test_a_rank_that_ran_out_of_memory_is_reported_immediately() -> None:
    (verdict,) = verdicts_on(60, ooms=lambda rank, minute: int(rank == 2 and minute > 5))
    assert (list(verdict.culprits), verdict.message) == ([2], "rank 2 ran out of device memory and continued")


def test_after_ten_quiet_minutes_it_is_reported_again() -> None:
    verdicts = verdicts_on(60, ooms=lambda rank, minute: (minute > 5) + (minute > 6 + OF_SAMPLES))
    assert [list(verdict.culprits) for verdict in verdicts] == [[0, 1, 2, 3]] * 2


def test_an_agent_that_has_not_heard_from_its_ranks_yet_changes_nothing() -> None:
    def state(_rank: int, minute: int) -> store.RankState:
        known = MemoryStatus(reserved_bytes=1, ooms=1)
        return store.RankState(memory=MemoryStatus() if minute == 5 else known)

    _, verdicts = watch(AllocatorRetries(), ticks(10, 1, state, every_s=60.0))
    assert len(verdicts) == 1  # the first minute's


def test_rare_retries_are_not_reported() -> None:
    noise = random.Random(1)
    counts = [0]
    for _ in range(5000):
        counts.append(counts[-1] + (noise.random() < 0.005))
    assert verdicts_on(5000, retries=lambda _, minute: counts[minute]) == []
