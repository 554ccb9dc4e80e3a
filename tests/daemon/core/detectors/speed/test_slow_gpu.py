"""Ranks whose GPU is slower than those of their peers."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from holdfast_daemon.core.detectors.speed.straggler import Straggler
from holdfast_daemon.core.detectors.view import View
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from tests.support.ticks import START_UNIX_S, tick, watch

Seconds = Callable[[int, int], float]
"""(rank, step) -> seconds."""


@dataclass
class GpuRun:
    """A run on GPUs: every rank waits for the slowest one. Its host spins while it waits, and so seems to be busy."""

    ranks: int
    device_s: Seconds
    on_cpu: frozenset[int] = frozenset()
    """Ranks that compute on the CPU, for the same time."""
    unknown: frozenset[int] = frozenset()
    """Ranks of which work and waiting cannot be separated."""
    late_steps: Callable[[int, int], int] = lambda _rank, _step: 1
    """Steps by which the time of the GPU is read late."""
    stage_of: Mapping[int, int] = field(default_factory=dict)
    spins: bool = True

    def steps(self, count: int) -> Iterator[View]:
        now = START_UNIX_S
        own: list[list[float]] = [[0.0] for _ in range(self.ranks)]
        host_s = [0.0] * self.ranks
        for step in range(count):
            yield tick(now, [self._state(rank, step, own[rank], host_s[rank]) for rank in range(self.ranks)])
            spent_s = [self.device_s(rank, step) for rank in range(self.ranks)]
            now += max(spent_s)
            for rank, seconds in enumerate(spent_s):
                own[rank].append(own[rank][-1] + seconds)
                spinning = self.spins and rank not in self.on_cpu
                host_s[rank] += max(spent_s) if spinning else seconds

    def _state(self, rank: int, step: int, own_s: list[float], host_s: float) -> store.RankState:
        state = store.RankState(
            rank=rank,
            progress=common.Progress(step=step),
            steps_done=step,
            busy_s=host_s,
            thread_state="R",
            coordinates={"pp": self.stage_of[rank]} if self.stage_of else {},
            device="cpu" if rank in self.on_cpu else f"cuda:{rank}",
        )
        if rank not in self.on_cpu | self.unknown:
            known = max(0, step - self.late_steps(rank, step))
            state.device_steps, state.device_own_s = known, own_s[known]
        return state

    def verdicts(self, steps: int = 160) -> list[store.Verdict]:
        return watch(Straggler(), self.steps(steps))[1]


def slow(ranks: set[int], factor: float, *, since: int = 0) -> Seconds:
    return lambda rank, step: factor if rank in ranks and step >= since else 1.0


def test_a_slow_gpu_is_named_by_its_own_time() -> None:
    (verdict,) = GpuRun(8, slow({3}, 1.8, since=43)).verdicts()
    assert (list(verdict.culprits), verdict.phase) == ([3], common.PHASE_UNSPECIFIED)
    assert verdict.straggler.kind == store.OWN_TIME_KIND_DEVICE
    assert verdict.message == (
        "rank 3 is slow since step 43, on the GPU: its GPU works 1.8 s per step without waiting for other ranks, those"
        " of its peers 1 s (1.8 times as much)"
    )


def test_of_two_gpus_the_one_that_has_become_slow_is_named() -> None:
    (verdict,) = GpuRun(2, slow({1}, 1.8, since=43)).verdicts()
    assert list(verdict.culprits) == [1]
    assert verdict.message.endswith(" without waiting for other ranks, 1 s before (1.8 times as much)")
    assert GpuRun(2, slow({1}, 1.8)).verdicts() == []  # it may be another kind of work


def test_two_slow_gpus_are_named_together() -> None:
    (verdict,) = GpuRun(8, slow({2, 5}, 1.6)).verdicts()
    assert sorted(verdict.culprits) == [2, 5]
    assert verdict.message.startswith(
        "ranks 2, 5 are slow since step 3, on the GPU: that of rank 2 works 1.6 s per step"
    )


def test_where_work_and_waiting_cannot_be_separated_nobody_is_accused() -> None:
    everyone = frozenset(range(8))
    assert GpuRun(8, slow({3}, 3.0), unknown=everyone).verdicts() == []
    assert GpuRun(8, slow({3}, 3.0), unknown=everyone, spins=False).verdicts() == []


def test_a_rank_whose_time_is_unknown_is_not_accused_and_the_others_are_still_compared() -> None:
    assert GpuRun(8, slow({3}, 3.0), unknown=frozenset({3})).verdicts() == []
    (verdict,) = GpuRun(8, slow({3}, 3.0), unknown=frozenset({0, 1})).verdicts()
    assert list(verdict.culprits) == [3]


def test_ranks_on_the_cpu_are_compared_as_before_next_to_ranks_on_gpus() -> None:
    on_cpu = frozenset(range(4, 8))
    for unknown in (frozenset[int](), frozenset(range(4))):
        (verdict,) = GpuRun(8, slow({6}, 2.0), on_cpu=on_cpu, unknown=unknown).verdicts()
        assert (list(verdict.culprits), verdict.straggler.kind) == ([6], store.OWN_TIME_KIND_BUSY)


def test_gpus_are_not_compared_with_cpus() -> None:
    on_cpu = frozenset({4, 5, 6, 7})
    assert GpuRun(8, lambda rank, _: 3.0 if rank in on_cpu else 1.0, on_cpu=on_cpu).verdicts() == []
    assert GpuRun(8, lambda rank, _: 1.0 if rank in on_cpu else 3.0, on_cpu=on_cpu).verdicts() == []


def test_stages_with_more_work_have_no_slow_gpus() -> None:
    stages = {rank: rank // 4 for rank in range(8)}
    assert GpuRun(8, slow({4, 5, 6, 7}, 2.0), stage_of=stages).verdicts() == []


@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_the_noise_of_healthy_gpus_accuses_nobody(ranks: int) -> None:
    noise = random.Random(ranks)
    seconds = [
        [noise.lognormvariate(0.0, 0.08) + 5.0 * (noise.random() < 0.002) for _ in range(3000)] for _ in range(ranks)
    ]
    run = GpuRun(ranks, lambda rank, step: seconds[rank][step], late_steps=lambda rank, step: noise.randrange(4))
    assert run.verdicts(3000) == []


def test_gpus_that_all_become_slow_have_no_straggler() -> None:
    assert GpuRun(4, lambda _rank, step: 3.0 if step > 60 else 1.0).verdicts(200) == []
