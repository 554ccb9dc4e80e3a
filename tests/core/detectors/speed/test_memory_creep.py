"""Memory that grows until none is left."""

import math
import random
from collections.abc import Callable

import pytest

from holdfast_core.detectors.speed.memory_creep import SAMPLE_EVERY_S, MemoryCreep
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.session_pb2 import MemoryStatus
from tests.support.ticks import ticks, watch

GIB = 2**30
LIMIT = 80 * GIB
NOISE = random.Random(5)
JITTER = [NOISE.gauss(0.0, 0.05) for _ in range(10_000)]
Gib = Callable[[int, int], float]
"""(rank, sample) -> GiB reserved, in addition to the 20 GiB of every rank."""


def verdicts_on(samples: int, reserved: Gib, *, limit: int = LIMIT, ranks: int = 2) -> list[store.Verdict]:
    """Return the verdicts on a run that is sampled every 10 s, once in each step."""

    def state(rank: int, sample: int) -> store.RankState:
        held = 20.0 + reserved(rank, sample) + JITTER[(sample * ranks + rank) % len(JITTER)]
        memory = MemoryStatus(reserved_bytes=int(held * GIB), limit_bytes=limit)
        return store.RankState(steps_done=10 + sample, memory=memory)

    return watch(MemoryCreep(), ticks(samples, ranks, state, every_s=SAMPLE_EVERY_S))[1]


def test_a_leak_is_reported_once_with_its_rank_and_the_hours_left() -> None:
    (verdict,) = verdicts_on(300, lambda rank, sample: 0.05 * sample if rank == 1 else 0.0)
    assert list(verdict.culprits) == [1]
    assert verdict.message == ("memory of rank 1 grows by 18 GiB per hour: rank 1 reaches its limit of 80 GiB in 3.2 h")


def test_ranks_that_leak_together_are_reported_together_the_first_to_end_first() -> None:
    (verdict,) = verdicts_on(300, lambda rank, sample: (0.05 + 0.02 * rank) * sample, ranks=3)
    assert list(verdict.culprits) == [2, 1, 0]


def test_a_fast_run_is_sampled_by_steps() -> None:
    def state(_rank: int, tick: int) -> store.RankState:
        memory = MemoryStatus(reserved_bytes=int((20 + 0.02 * tick) * GIB), limit_bytes=LIMIT)
        return store.RankState(steps_done=10 + 2 * tick, memory=memory)

    assert len(watch(MemoryCreep(), ticks(300, 2, state, every_s=0.5))[1]) == 1


def test_growth_that_would_take_days_is_not_reported() -> None:
    assert verdicts_on(300, lambda _, sample: 0.05 * sample, limit=2000 * GIB) == []


def test_an_unknown_limit_is_not_judged() -> None:
    assert verdicts_on(300, lambda _, sample: 0.05 * sample, limit=0) == []


@pytest.mark.parametrize("period_samples", [6, 20, 32, 50])
def test_a_cache_that_fills_and_is_emptied_is_no_leak(period_samples: int) -> None:
    assert verdicts_on(1000, lambda _, sample: 0.3 * (sample % period_samples)) == []


@pytest.mark.parametrize("steps_at", [(40,), (30, 60), (20, 45, 70)])
def test_steps_up_at_evaluations_are_no_leak(steps_at: tuple[int, ...]) -> None:
    assert verdicts_on(300, lambda _, sample: 5.0 * sum(sample >= at for at in steps_at)) == []


@pytest.mark.parametrize("time_constant_samples", [5, 15, 40, 60])
def test_growth_that_ends_with_the_warm_up_is_no_leak(time_constant_samples: int) -> None:
    assert verdicts_on(600, lambda _, sample: 15.0 * (1.0 - math.exp(-sample / time_constant_samples))) == []


def test_memory_that_wanders_about_a_level_is_no_leak() -> None:
    noise = random.Random(11)
    levels = [[0.0], [0.0]]
    for of_rank in levels:
        for _ in range(5000):
            of_rank.append(0.98 * of_rank[-1] + noise.gauss(0.0, 0.3))
    spikes = [20.0 * (noise.random() < 0.05) for _ in range(5000)]
    assert verdicts_on(5000, lambda rank, sample: levels[rank][sample] + spikes[sample]) == []


def test_a_new_generation_is_sampled_anew() -> None:
    def state(_rank: int, tick: int) -> store.RankState:
        return store.RankState(
            steps_done=10 + tick, memory=MemoryStatus(reserved_bytes=(20 + tick) * GIB // 20, limit_bytes=LIMIT)
        )

    detector, first = watch(MemoryCreep(), ticks(100, 1, state, every_s=10.0))
    assert (len(first), len(watch(detector, ticks(100, 1, state, every_s=10.0))[1])) == (1, 0)
    assert len(watch(detector.restarted(5), ticks(100, 1, state, every_s=10.0))[1]) == 1
