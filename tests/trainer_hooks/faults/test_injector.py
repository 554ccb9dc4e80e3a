import itertools
import math
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from holdfast_hooks import Phase
from holdfast_hooks.faults import CATALOGUE, Fault, Injector, check, random_faults
from holdfast_hooks.faults.corruption import flip_bit
from holdfast_hooks.faults.fault import Site
from holdfast_hooks.telemetry import timeline as timeline_module
from holdfast_hooks.telemetry.timeline import Timeline
from tests.support.coroutines import wait_until

Moment = tuple[int, int]


class Rank:
    """A training thread's timeline, and the moments that its black box has got."""

    def __init__(self) -> None:
        self.recorded: list[Moment] = []
        self.timeline = Timeline(lambda step, phase, unix_ns: self.recorded.append((step, phase)))
        self.injector = Injector(Site(self.timeline, {"model": torch.nn.Linear(2, 2)}), rank=3)

    @property
    def is_watched(self) -> bool:
        moment = self.timeline._moment
        return getattr(moment, "__self__", None) is self.injector

    def train(self, steps: int = 1) -> None:
        for _ in range(steps):
            step = self.timeline.step + 1
            self.timeline.begin(step)
            for phase in (Phase.DATA, Phase.FORWARD_BACKWARD, Phase.OPTIMIZER):
                self.timeline.enter(phase)
            self.timeline.boundary = step
            self.timeline.end()


@pytest.fixture
def rank() -> Iterator[Rank]:
    it = Rank()
    yield it
    it.injector.disarm()


def exception(**when: object) -> Fault:
    return Fault("exception", rank=3, **when)  # type: ignore[arg-type]


def where_it_struck(rank: Rank, steps: int = 4) -> Moment | None:
    try:
        rank.train(steps)
    except RuntimeError:
        return rank.timeline.step, rank.timeline.phase
    return None


def test_nothing_is_in_the_way_before_arming_and_after_the_last_strike(rank: Rank) -> None:
    assert not rank.is_watched
    rank.injector.arm(exception(step=1))
    assert rank.is_watched
    assert where_it_struck(rank) == (1, Phase.FORWARD_BACKWARD)
    assert not rank.is_watched
    assert rank.recorded[-1] == (1, Phase.FORWARD_BACKWARD)  # the black box had it before the fault


@pytest.mark.parametrize(
    ("when", "struck"),
    [
        ({"step": 3, "phase": Phase.DATA}, (3, Phase.DATA)),
        ({"step": 3, "phase": Phase.OPTIMIZER}, (3, Phase.OPTIMIZER)),
        ({}, (2, Phase.FORWARD_BACKWARD)),
    ],
    ids=["data", "optimizer", "no step, so immediately"],
)
def test_it_strikes_in_the_phase_of_its_step(rank: Rank, when: dict[str, Any], struck: Moment) -> None:
    rank.train(2)
    rank.injector.arm(exception(**when))
    assert where_it_struck(rank) == struck


def test_a_phase_that_its_step_does_not_enter_is_waited_for(rank: Rank) -> None:
    rank.injector.arm(exception(step=1, phase=Phase.EVAL))
    assert where_it_struck(rank) is None
    with pytest.raises(RuntimeError):
        rank.timeline.enter(Phase.EVAL)


def test_faults_of_other_ranks_are_left_out(rank: Rank) -> None:
    rank.injector.arm(replace(exception(), rank=2))
    assert not rank.is_watched


def test_what_is_disarmed_does_not_strike(rank: Rank) -> None:
    rank.injector.arm(exception(step=1))
    rank.injector.disarm()
    assert (rank.is_watched, where_it_struck(rank)) == (False, None)


def test_several_faults_strike_one_after_the_other(rank: Rank) -> None:
    rank.injector.arm(exception(step=2), exception(step=0))
    assert where_it_struck(rank) == (0, Phase.FORWARD_BACKWARD)
    assert where_it_struck(rank) == (2, Phase.FORWARD_BACKWARD)


def test_a_step_that_is_over_is_refused(rank: Rank) -> None:
    rank.train(3)
    with pytest.raises(ValueError, match="step 1 has already ended"):
        rank.injector.arm(exception(step=1))


def test_a_fault_that_needs_a_model_is_refused_without_one(rank: Rank) -> None:
    bare = Injector(Site(rank.timeline, {}), rank=3)
    with pytest.raises(ValueError, match="needs a torch module"):
        bare.arm(Fault("bit-flip", rank=3))


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Fault("kil"), "holdfast inject --list"),
        (Fault("kill", duration_s=1), "takes no duration_s"),
        (Fault("slow"), "factor above 1"),
        (Fault("gil-held", duration_s=-1), "use 0"),
        (Fault("clock-jump"), "needs a duration_s"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(fault: Fault, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        check(fault)
    assert "\n" not in str(caught.value)


def test_a_fault_survives_the_way_to_its_rank() -> None:
    for kind, phase in itertools.product(CATALOGUE, (None, *Phase)):
        fault = Fault(kind, rank=1, step=-1, phase=phase, duration_s=0.5, factor=2.0, seed=2**40)
        assert Fault.from_message(fault.to_message()) == fault


@pytest.mark.parametrize("kind", ["deadlock", "data-stall", "frozen-disk"])
def test_the_training_thread_waits_until_the_time_is_over(rank: Rank, kind: str) -> None:
    rank.injector.arm(Fault(kind, rank=3, step=1, duration_s=0.1))
    began_s = time.monotonic()
    rank.train(3)
    assert time.monotonic() - began_s >= 0.1
    assert not rank.is_watched


@pytest.mark.parametrize("kind", ["deadlock", "data-stall", "frozen-disk"])
def test_the_training_thread_waits_forever(kind: str) -> None:
    rank, function = Rank(), kind.replace("-", "_")
    rank.injector.arm(Fault(kind, rank=3, step=1))
    thread = threading.Thread(target=rank.train, args=(3,), daemon=True)
    thread.start()
    wait_until(lambda: function in innermost_functions(thread), f"the thread is in {function}")
    phase = Phase.DATA if kind == "data-stall" else Phase.FORWARD_BACKWARD
    assert (rank.timeline.step, rank.timeline.phase) == (1, phase)


def innermost_functions(thread: threading.Thread) -> list[str]:
    assert thread.ident is not None
    frame, names = sys._current_frames().get(thread.ident), []
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names


def test_a_slow_rank_computes_so_much_longer_in_the_phase_itself(rank: Rank) -> None:
    rank.injector.arm(Fault("slow", rank=3, step=1, factor=4.0))
    ratios = []
    """Time that each phase took, divided by the time that it would have taken."""
    for step in range(3):
        rank.timeline.begin(step)
        rank.timeline.enter(Phase.DATA)
        rank.timeline.enter(Phase.FORWARD_BACKWARD)
        began_s = time.perf_counter()
        time.sleep(0.02)
        own_s = time.perf_counter() - began_s  # longer on a busy machine
        rank.timeline.enter(Phase.OPTIMIZER)
        ratios.append(rank.timeline.end()[3][Phase.FORWARD_BACKWARD] / 1e9 / own_s)
    assert ratios[0] < 2.0
    assert min(ratios[1:]) >= 3.9
    assert rank.is_watched
    rank.injector.disarm()
    assert not rank.is_watched


def test_a_loop_without_phases_is_slowed_down_as_well(rank: Rank) -> None:
    rank.injector.arm(Fault("slow", rank=3, factor=4.0))
    for step in range(3):
        rank.timeline.begin(step)
        time.sleep(0.02)
        _, _, duration_ns, phase_ns, _ = rank.timeline.end()
    assert phase_ns[Phase.FORWARD_BACKWARD] == duration_ns >= 0.08e9


def test_the_clock_jumps_wherever_a_module_holds_it_and_back(rank: Rank) -> None:
    real, monotonic = time.time(), time.monotonic()
    rank.injector.arm(Fault("clock-jump", rank=3, duration_s=7200))
    rank.train()
    assert time.time() - real >= 7200
    assert timeline_module.time_ns() - real * 1e9 >= 7200e9  # type: ignore[attr-defined]
    assert time.monotonic() - monotonic < 3600
    assert rank.timeline.end()[1] - real * 1e9 >= 7200e9
    rank.injector.disarm()
    assert abs(time.time() - real) < 3600
    assert timeline_module.time_ns is time.time_ns  # type: ignore[attr-defined]


def bytes_of(model: torch.nn.Module) -> list[int]:
    return torch.cat([parameter.detach().view(torch.uint8).flatten() for parameter in model.parameters()]).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_every_bit_of_every_type_can_be_flipped(dtype: torch.dtype) -> None:
    model = torch.nn.Linear(3, 2).to(dtype)
    site = Site(Timeline(lambda step, phase, unix_ns: None), {"model": model})
    for seed in range(200):
        before = bytes_of(model)
        flip_bit(Fault("bit-flip", seed=seed), site)
        assert sum((a ^ b).bit_count() for a, b in zip(before, bytes_of(model), strict=True)) == 1


def test_a_bit_is_flipped_where_other_ranks_hold_a_copy_if_there_are_copies() -> None:
    model = torch.nn.Linear(3, 2)
    weight, bias = model.weight.detach().clone(), model.bias.detach().clone()
    site = Site(Timeline(lambda step, phase, unix_ns: None), {"model": model}, lambda: [model.bias])
    for seed in range(20):
        flip_bit(Fault("bit-flip", seed=seed), site)
    assert torch.equal(model.weight, weight)
    assert not torch.equal(model.bias, bias)


def drawn(seed: int, count: int, rate: float = 0.1) -> list[Fault]:
    faults = random_faults(rate_per_step=rate, kinds=("kill", "slow", "bit-flip"), ranks=range(8), seed=seed)
    return list(itertools.islice(faults, count))


def test_the_same_seed_repeats_and_another_does_not() -> None:
    assert drawn(1, 50) == drawn(1, 50)
    assert drawn(1, 50) != drawn(2, 50)
    for fault in drawn(1, 50):
        check(fault)


def test_intervals_are_geometric() -> None:
    rate, count = 0.1, 20_000
    steps = [-1, *(fault.step for fault in drawn(5, count, rate))]
    intervals = [after - before for before, after in itertools.pairwise(steps)]
    assert min(intervals) == 1
    deviation = math.sqrt(1 - rate) / rate
    assert statistics.mean(intervals) == pytest.approx(1 / rate, abs=5 * deviation / math.sqrt(count))
    for length in (1, 5, 10, 30):  # P(interval <= n) = 1 - (1 - rate)^n
        expected = 1 - (1 - rate) ** length
        share = sum(interval <= length for interval in intervals) / count
        assert share == pytest.approx(expected, abs=5 * math.sqrt(expected * (1 - expected) / count))


def test_every_rank_and_kind_has_its_share() -> None:
    faults = drawn(7, 8000)
    for rank in range(8):
        assert sum(fault.rank == rank for fault in faults) == pytest.approx(1000, abs=150)
    for kind in ("kill", "slow", "bit-flip"):
        assert sum(fault.kind == kind for fault in faults) == pytest.approx(8000 / 3, abs=220)


@pytest.mark.parametrize("rate", [0.0, 1.5])
def test_a_rate_that_is_no_probability_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="rate_per_step"):
        random_faults(rate_per_step=rate, kinds=("kill",), ranks=(0,), seed=0)
