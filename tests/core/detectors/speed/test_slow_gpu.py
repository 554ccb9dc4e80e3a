"""Ranks whose GPU is slower than those of their peers."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from holdfast_core.detectors.speed.gpu_use import GpuUse, utilizations
from holdfast_core.detectors.speed.straggler import WARM_UP_STEPS, WINDOW_STEPS, Straggler
from holdfast_core.detectors.view import View
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
    utilization: Mapping[int, float] = field(default_factory=dict)
    """Share of time in which a kernel runs on the GPU of a rank; none: its driver does not show it."""
    hot: frozenset[int] = frozenset()
    """Ranks whose GPU has low clocks."""
    sharing: frozenset[int] = frozenset()
    """Ranks on one GPU."""
    reads_from: int = 0
    """Step in which the agent begins to read the driver."""
    differs_from: int = 0
    """Step in which ``utilization`` begins. Before it, all GPUs run kernels all the time."""

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
        state.gpu.gpu, state.gpu.uuid = rank, "GPU-shared" if rank in self.sharing else f"GPU-{rank}"
        if rank in self.hot:
            state.gpu.throttles.append("hw_slowdown")
        if rank in self.utilization and step >= self.reads_from:
            samples = 1 + step - self.reads_from
            low = max(0, samples - self.differs_from)
            state.gpu.utilization_samples = samples
            state.gpu.utilization_sum = samples - low + low * self.utilization[rank]
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


def detail(run: GpuRun) -> store.StragglerDetail:
    (verdict,) = run.verdicts()
    assert 3 in verdict.culprits
    return verdict.straggler


def of_all(share: float) -> dict[int, float]:
    """Return the same utilization for eight ranks."""
    return dict.fromkeys(range(8), share)


def test_a_slow_rank_whose_gpu_has_less_to_do_than_those_that_wait_for_it_points_to_its_host() -> None:
    (verdict,) = GpuRun(8, slow({3}, 1.8, since=43), utilization=of_all(1.0) | {3: 0.41}).verdicts()
    found = verdict.straggler
    assert (found.utilization_ratio, found.peers_utilization_ratio) == pytest.approx((0.41, 1.0))
    assert found.side == store.SLOW_SIDE_HOST
    assert verdict.message.endswith(
        "; its GPU 3 runs kernels 41% of the time, those of its peers 100%: that points to its host"
    )


def test_a_slow_rank_whose_gpu_always_works_with_low_clocks_points_to_the_gpu() -> None:
    (verdict,) = GpuRun(8, slow({3}, 1.8), utilization=of_all(1.0) | {3: 0.97}, hot=frozenset({3})).verdicts()
    assert verdict.straggler.side == store.SLOW_SIDE_GPU
    assert verdict.message.endswith(
        "; the clocks of its GPU 3 are low: hw_slowdown; it runs kernels 97% of the time, those of its peers 100%: that"
        " points to the GPU itself"
    )


def test_utilization_alone_accuses_nobody_and_takes_nothing_back() -> None:
    idle = of_all(1.0) | {3: 0.1}
    assert GpuRun(8, slow(set(), 1.0), utilization=idle, hot=frozenset({3})).verdicts() == []
    assert GpuRun(8, slow({3}, 3.0), unknown=frozenset(range(8)), utilization=idle).verdicts() == []
    for shares in (of_all(0.1) | {3: 1.0}, of_all(1.0), {}):
        (verdict,) = GpuRun(8, slow({3}, 1.8), utilization=shares).verdicts()
        assert (list(verdict.culprits), verdict.straggler.side) == ([3], store.SLOW_SIDE_UNSPECIFIED)


@pytest.mark.parametrize("own", [0.81, 0.9, 1.0])
def test_a_share_that_is_not_clearly_less_shows_nothing(own: float) -> None:
    assert not detail(GpuRun(8, slow({3}, 1.8), utilization=of_all(1.0) | {3: own})).side


def test_signs_that_contradict_each_other_show_nothing() -> None:
    found = detail(GpuRun(8, slow({3}, 1.8), utilization=of_all(1.0) | {3: 0.4}, hot=frozenset({3})))
    assert (found.side, list(found.throttles)) == (store.SLOW_SIDE_UNSPECIFIED, ["hw_slowdown"])
    low = of_all(0.5)  # low clocks of a GPU that has little to do slow nobody down
    assert not detail(GpuRun(8, slow({3}, 1.8), utilization=low, hot=frozenset({3}))).side


def test_an_unknown_utilization_shows_nothing() -> None:
    own_unknown, peers_unknown = of_all(1.0), {3: 0.4}
    del own_unknown[3]
    found = detail(GpuRun(8, slow({3}, 1.8), utilization=own_unknown))
    assert (found.side, found.HasField("utilization_ratio"), found.peers_utilization_ratio) == (0, False, 1.0)
    found = detail(GpuRun(8, slow({3}, 1.8), utilization=peers_unknown))
    assert (found.side, found.HasField("peers_utilization_ratio")) == (0, False)


def test_ranks_that_share_a_gpu_have_no_utilization_of_their_own() -> None:
    found = detail(GpuRun(8, slow({3}, 1.8), utilization=of_all(1.0) | {3: 0.4}, sharing=frozenset({2, 3})))
    assert (found.side, found.HasField("utilization_ratio"), found.peers_utilization_ratio) == (0, False, 1.0)


def test_only_ranks_of_the_same_stage_that_are_not_slow_are_its_peers() -> None:
    stages = {rank: rank // 4 for rank in range(8)}
    shares = {0: 0.9, 1: 0.9, 2: 0.3, 3: 0.4, **dict.fromkeys(range(4, 8), 0.1)}
    found = detail(GpuRun(8, slow({2, 3}, 1.8, since=43), stage_of=stages, utilization=shares))
    assert found.peers_utilization_ratio == pytest.approx(0.9)
    assert found.side == store.SLOW_SIDE_HOST


def test_too_few_samples_are_none() -> None:
    windows = 3 * WINDOW_STEPS  # until the verdict
    for first, is_known in ((0, True), (WARM_UP_STEPS + windows - 3, False)):
        run = GpuRun(8, slow({3}, 1.8), utilization=of_all(1.0) | {3: 0.4}, reads_from=first)
        assert detail(run).HasField("utilization_ratio") == is_known


@pytest.mark.parametrize(("later_windows", "share"), [(0, 0.4), (1, 0.6)])
def test_the_share_is_that_of_all_three_windows_in_which_the_rank_was_slow(later_windows: int, share: float) -> None:
    since = WARM_UP_STEPS + 5 * WINDOW_STEPS
    run = GpuRun(8, slow({3}, 1.8, since=since), utilization=of_all(1.0) | {3: 0.4})
    run.differs_from = 1 + since + later_windows * WINDOW_STEPS
    assert detail(run).utilization_ratio == pytest.approx(share)


def test_the_share_of_a_stretch_of_time_is_the_mean_of_its_samples() -> None:
    assert utilizations({0: GpuUse("GPU-0", 50.0, 100)}, {0: GpuUse("GPU-0", 53.0, 110)}) == {0: pytest.approx(0.3)}


@pytest.mark.parametrize(
    "newer",
    [
        GpuUse("GPU-1", 53.0, 110),  # another GPU
        GpuUse("GPU-0", 3.0, 10),  # another agent
        GpuUse("GPU-0", 3.0, 110),
        GpuUse("GPU-0", 90.0, 110),
        GpuUse("GPU-0", 52.0, 104),  # too few
    ],
)
def test_samples_that_do_not_follow_each_other_give_no_share(newer: GpuUse) -> None:
    assert utilizations({0: GpuUse("GPU-0", 50.0, 100)}, {0: newer}) == {}
