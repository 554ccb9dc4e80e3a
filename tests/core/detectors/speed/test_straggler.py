"""Ranks and nodes that are slower than their peers."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from holdfast_core.detectors.speed.straggler import OF_WINDOWS, WARM_UP_STEPS, WINDOW_STEPS, Straggler
from holdfast_core.detectors.view import View
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from tests.support.ticks import START_UNIX_S, tick, watch

CHECKPOINT, DATA, BACKWARD, OPTIMIZER = (
    common.PHASE_CHECKPOINT,
    common.PHASE_DATA,
    common.PHASE_FORWARD_BACKWARD,
    common.PHASE_OPTIMIZER,
)
Seconds = Callable[[int, int], float]
"""(rank, step) -> seconds."""


def nothing(_rank: int, _step: int) -> float:
    return 0.0


@dataclass
class Run:
    """A run with one tick per step. All ranks wait for the slowest at the end of the backward pass."""

    ranks: int
    compute_s: Seconds
    data_s: Seconds = nothing
    optimizer_s: Seconds = nothing
    asleep_s: Seconds = nothing
    seen_asleep_s: Seconds | None = None
    """As samples show it; None: as it is."""
    checkpoint_s: Seconds = nothing
    busy_in_checkpoint: frozenset[int] = frozenset()
    stage_of: Mapping[int, int] = field(default_factory=dict)
    node_of: Mapping[int, str] | None = None
    device: str = "cpu"
    gpus: Mapping[int, store.GpuState] = field(default_factory=dict)
    unseen: range = range(0)
    """Steps in which no agent could look at the thread of rank 2: its busy time stays as it was."""

    def steps(self, count: int) -> Iterator[View]:
        now = START_UNIX_S
        busy, asleep = [0.0] * self.ranks, [0.0] * self.ranks
        seen = busy
        seen_asleep_s = self.seen_asleep_s or self.asleep_s
        spent: list[dict[int, float]] = [dict.fromkeys((CHECKPOINT, DATA, BACKWARD, OPTIMIZER), 0.0)] * self.ranks
        for step in range(count):
            numbers = range(self.ranks)
            seen = [seen[rank] if step in self.unseen and rank == 2 else busy[rank] for rank in numbers]
            yield tick(
                now, [self._state(rank, step, seen[rank], asleep[rank], spent[rank]) for rank in numbers], self.node_of
            )
            checkpoint_s = max(self.checkpoint_s(rank, step) for rank in numbers)
            own_s = [self.data_s(rank, step) + self.compute_s(rank, step) for rank in numbers]
            training_s = [seconds + self.asleep_s(rank, step) for rank, seconds in enumerate(own_s)]
            optimizer_s = [self.optimizer_s(rank, step) for rank in numbers]
            for rank in numbers:
                spent[rank] = {
                    CHECKPOINT: spent[rank][CHECKPOINT] + checkpoint_s,
                    DATA: spent[rank][DATA] + self.data_s(rank, step),
                    BACKWARD: spent[rank][BACKWARD] + max(training_s) - self.data_s(rank, step),
                    OPTIMIZER: spent[rank][OPTIMIZER] + optimizer_s[rank],
                }
                busy[rank] += self.compute_s(rank, step) + optimizer_s[rank]
                busy[rank] += checkpoint_s if rank in self.busy_in_checkpoint else 0.0
                asleep[rank] += seen_asleep_s(rank, step)
            now += max(training_s) + max(optimizer_s) + checkpoint_s

    def _state(
        self, rank: int, step: int, busy_s: float, own_wait_s: float, phase_s: Mapping[int, float]
    ) -> store.RankState:
        return store.RankState(
            rank=rank,
            progress=common.Progress(step=step),
            steps_done=step,
            busy_s=busy_s,
            thread_state="" if step in self.unseen and rank == 2 else "S",
            own_wait_s=own_wait_s,
            phase_s=phase_s,
            coordinates={"pp": self.stage_of[rank]} if self.stage_of else {},
            device=self.device,
            gpu=self.gpus.get(rank),
        )

    def verdicts(self, steps: int = 120) -> list[store.Verdict]:
        return watch(Straggler(), self.steps(steps))[1]


def slow(ranks: set[int], factor: float, *, since: int = 0, until: int = 10_000, usual_s: float = 1.0) -> Seconds:
    return lambda rank, step: usual_s * (factor if rank in ranks and since <= step < until else 1.0)


def culprits(verdicts: list[store.Verdict]) -> list[list[int]]:
    return [list(verdict.culprits) for verdict in verdicts]


def test_a_slow_rank_is_named_within_three_windows_with_factor_step_and_phase() -> None:
    _, verdicts = watch(Straggler(), Run(8, slow({3}, 1.8, since=43)).steps(43 + 4 * WINDOW_STEPS))
    (verdict,) = verdicts
    assert (list(verdict.culprits), verdict.phase, verdict.confidence_ratio) == ([3], BACKWARD, 1.0)
    assert verdict.step == WARM_UP_STEPS + 5 * WINDOW_STEPS
    assert verdict.message == (
        "rank 3 is slow since step 43, in forward_backward: 1.8 s of its own time per step, its peers 1 s"
        " (1.8 times as much)"
    )


def test_low_clocks_of_its_gpu_explain_a_slow_rank_and_are_no_reason_to_name_one() -> None:
    hot = {rank: store.GpuState(gpu=4, throttles=["hw_thermal_slowdown"]) for rank in (1, 3)}
    assert Run(8, slow(set(), 1), gpus=hot).verdicts() == []
    (verdict,) = Run(8, slow({3}, 1.8), gpus=hot).verdicts()
    assert list(verdict.culprits) == [3]
    assert verdict.message.endswith("; the clocks of its GPU 4 are low: hw_thermal_slowdown")


def test_a_slow_optimizer_is_distinguished_from_a_slow_backward_pass() -> None:
    (verdict,) = Run(8, slow(set(), 1), optimizer_s=slow({3}, 10, usual_s=0.1)).verdicts()
    assert (list(verdict.culprits), verdict.phase) == ([3], OPTIMIZER)


def test_a_rank_that_waits_for_data_is_named_with_that_phase() -> None:
    (verdict,) = Run(8, slow(set(), 1), data_s=slow({2}, 50, usual_s=0.01)).verdicts()
    assert (list(verdict.culprits), verdict.phase) == ([2], DATA)


def test_a_rank_is_no_straggler_because_its_thread_could_not_be_looked_at_for_a_while() -> None:
    for first in range(0, 40, 5):
        assert Run(4, slow(set(), 1.0), unseen=range(first, first + 38)).verdicts() == []


def test_an_episode_is_reported_once_and_the_next_one_again() -> None:
    def compute_s(rank: int, step: int) -> float:
        return 2.0 if rank == 3 and (step < 200 or step >= 300) else 1.0

    assert [(list(v.culprits), v.step) for v in Run(8, compute_s).verdicts(400)] == [([3], 3), ([3], 299)]


def test_two_slow_windows_in_a_row_are_no_straggler() -> None:
    end_s = WARM_UP_STEPS + (OF_WINDOWS - 2) * WINDOW_STEPS
    assert Run(8, slow({3}, 2.0, since=WARM_UP_STEPS, until=end_s)).verdicts() == []


def test_a_machine_slowed_as_a_whole_has_no_straggler() -> None:
    assert Run(4, slow({0, 1, 2, 3}, 3.0, since=60)).verdicts(200) == []


@pytest.mark.parametrize("ranks", [2, 3])
def test_without_peers_for_a_spread_a_rank_is_compared_with_its_own_past(ranks: int) -> None:
    (verdict,) = Run(ranks, slow({1}, 1.8, since=43)).verdicts()
    assert (list(verdict.culprits), verdict.step) == ([1], 43)
    assert "1.8 s of its own time per step, 1 s before" in verdict.message
    assert Run(ranks, slow({1}, 1.8)).verdicts() == []  # it may be another kind of work


def test_a_slow_node_is_named_with_all_of_its_ranks() -> None:
    nodes = {rank: f"n{rank // 4}" for rank in range(8)}
    (verdict,) = Run(8, slow({4, 5, 6, 7}, 1.6, since=43), node_of=nodes).verdicts()
    assert (verdict.node, sorted(verdict.culprits)) == ("n1", [4, 5, 6, 7])
    assert verdict.message.startswith("node n1 is slow since step 43, in forward_backward: rank 4 needs 1.6 s")


def test_of_ranks_on_two_nodes_no_node_is_named() -> None:
    (verdict,) = Run(8, slow({3, 5}, 1.6), node_of={rank: f"n{rank // 4}" for rank in range(8)}).verdicts()
    assert (verdict.node, list(verdict.culprits)) == ("", [3, 5])


def test_a_pipeline_stage_with_more_work_is_no_straggler_and_a_slow_rank_in_it_is() -> None:
    stages = {rank: rank // 4 for rank in range(8)}
    assert Run(8, slow({4, 5, 6, 7}, 2.0), stage_of=stages).verdicts() == []

    def compute_s(rank: int, step: int) -> float:
        return (1.0 if rank < 4 else 2.0) * (1.6 if rank == 1 else 1.0)

    assert culprits(Run(8, compute_s, stage_of=stages).verdicts()) == [[1]]


def test_a_rank_that_writes_checkpoints_is_no_straggler() -> None:
    run = Run(8, slow(set(), 1), checkpoint_s=lambda _, step: 0.8, busy_in_checkpoint=frozenset({0}))
    assert run.verdicts() == []


def test_what_costs_little_of_the_step_is_no_straggler() -> None:
    assert Run(8, slow(set(), 1), data_s=slow({2}, 50, usual_s=0.001)).verdicts() == []


def test_ranks_on_gpus_are_not_compared_by_what_their_hosts_do() -> None:
    assert Run(8, slow({3}, 3.0), device="cuda:0").verdicts() == []


def test_a_new_generation_is_reported_anew() -> None:
    run = Run(8, slow({3}, 2.0))
    detector, first = watch(Straggler(), run.steps(60))
    _, second = watch(detector.restarted(60), run.steps(60))
    assert culprits(first) == culprits(second) == [[3]]


def test_what_a_rank_usually_needs_is_known_after_a_restart() -> None:
    detector, _ = watch(Straggler(), Run(2, slow(set(), 1)).steps(60))
    _, (verdict,) = watch(detector.restarted(60), Run(2, slow({1}, 1.8)).steps(60))
    assert list(verdict.culprits) == [1]
    assert "1.8 s of its own time per step, 1 s before" in verdict.message


def test_durations_at_another_place_of_the_layout_do_not_count() -> None:
    detector, _ = watch(Straggler(), Run(2, slow(set(), 1)).steps(60))
    assert watch(detector.restarted(60), Run(2, slow({1}, 1.8), stage_of={0: 0, 1: 1}).steps(60))[1] == []


def test_a_rank_that_sleeps_in_its_forward_pass_is_named_although_it_computes_no_longer_than_its_peers() -> None:
    (verdict,) = Run(8, slow(set(), 1), asleep_s=slow({3}, 50, usual_s=0.01)).verdicts()
    assert (list(verdict.culprits), verdict.phase, verdict.confidence_ratio) == ([3], BACKWARD, 1.0)
    assert verdict.message == (
        "rank 3 is slow since step 3, in forward_backward: its training thread sleeps about 0.5 s per step while no"
        " call with other ranks is pending, those of its peers 0.01 s"
    )


def test_a_rank_of_two_that_begins_to_sleep_is_compared_with_its_own_past() -> None:
    (verdict,) = Run(2, slow(set(), 1), asleep_s=slow({1}, 60, since=43, usual_s=0.01)).verdicts()
    assert (list(verdict.culprits), verdict.step) == ([1], 43)
    assert verdict.message.endswith(
        "its training thread sleeps about 0.6 s per step while no call with other ranks is pending, 0.01 s before"
    )


def test_of_two_ranks_that_sleep_the_longer_one_is_described() -> None:
    sleeps = {3: 0.5, 5: 0.4}
    (verdict,) = Run(8, slow(set(), 1), asleep_s=lambda rank, _: sleeps.get(rank, 0.0)).verdicts()
    assert verdict.message.startswith(
        "ranks 3, 5 are slow since step 3, in forward_backward: the training thread of ra"
    )


def test_ranks_that_all_sleep_alike_are_no_stragglers() -> None:
    assert Run(8, slow(set(), 1), asleep_s=lambda *_: 0.5).verdicts() == []


@pytest.mark.parametrize("ranks", [2, 4, 16])
@pytest.mark.parametrize(("step_s", "share"), [(0.05, 0.02), (0.4, 0.02), (0.4, 0.2), (2.0, 0.5)])
def test_the_noise_of_samples_makes_no_straggler(ranks: int, step_s: float, share: float) -> None:
    noise = random.Random(ranks)

    def seen_asleep_s(_rank: int, _step: int) -> float:
        looks = int(step_s / 0.2 + noise.random())
        return 0.2 * sum(noise.random() < share for _ in range(looks))

    run = Run(ranks, slow(set(), 1, usual_s=(1 - share) * step_s), asleep_s=lambda *_: share * step_s)
    run.seen_asleep_s = seen_asleep_s
    assert run.verdicts(round(1000 / step_s)) == []


@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_heavy_tailed_noise_makes_no_straggler(ranks: int) -> None:
    noise = random.Random(ranks)
    seconds = [
        [noise.lognormvariate(0.0, 0.15) + 5.0 * (noise.random() < 0.005) for _ in range(3000)] for _ in range(ranks)
    ]
    waits = [[noise.expovariate(20.0) for _ in range(3000)] for _ in range(ranks)]
    run = Run(ranks, lambda rank, step: seconds[rank][step], data_s=lambda rank, step: waits[rank][step])
    assert run.verdicts(3000) == []
