"""Runs that become slower."""

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from holdfast_core.detectors.framework import Detector
from holdfast_core.detectors.speed import throughput_drop
from holdfast_core.detectors.speed.throughput_drop import PERSISTENT_S, PERSISTENT_STEPS, ThroughputDrop
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from tests.support.steps import show, steps_of, view
from tests.support.ticks import START_UNIX_S, tick


def summary(
    step: int, seconds: float, *, bubble: float = 0.0, mfu: float = 0.0, tokens: int = 0, **phases: float
) -> store.StepSummary:
    numbers = {common.Phase.Value(f"PHASE_{name.upper()}"): spent for name, spent in phases.items()}
    return store.StepSummary(
        step=step,
        duration_s=seconds,
        tokens=tokens,
        phase_s=numbers,
        mfu=store.Mean(sum=2 * mfu, count=2),
        pipeline_bubble=store.Mean(sum=2 * bubble, count=2),
    )


def verdicts_on(summaries: Iterable[store.StepSummary]) -> list[store.Verdict]:
    return show(ThroughputDrop(), summaries)[1]


def slower_from(step: int, seconds: float) -> Iterable[store.StepSummary]:
    return (summary(s, 1.0 if s < step else seconds) for s in range(400))


def test_a_drop_that_stays_is_reported_once_with_its_first_step_and_size() -> None:
    (verdict,) = verdicts_on(slower_from(200, 1.6))
    assert verdict.step == 200
    assert verdict.message == (
        "since step 200 steps take 1.6 times as long (1.6 s, 1 s before):"
        " the bottleneck is likely computation or communication"
    )


@pytest.mark.parametrize(
    ("step_s", "reported_after_steps"), [(0.05, 8 + PERSISTENT_S / 0.05), (10.0, 8 + PERSISTENT_STEPS)]
)
def test_a_drop_is_reported_after_a_minute_and_some_steps(step_s: float, reported_after_steps: float) -> None:
    detector: Detector = ThroughputDrop()
    reported_at = []
    for step in range(1600):
        numbers = summary(step, step_s if step < 200 else 1.6 * step_s)
        result = detector.see_step(view(numbers, now=START_UNIX_S + step * step_s))
        detector = result.next
        reported_at += [step] * len(result.findings)
    assert reported_at == [pytest.approx(200 + reported_after_steps, abs=2)]


@pytest.mark.parametrize("steps", [15, 40])
def test_a_drop_that_passes_is_not_reported(steps: int) -> None:
    assert verdicts_on(summary(step, 3.0 if 200 <= step < 200 + steps else 1.0) for step in range(400)) == []


def test_a_second_drop_is_reported_again() -> None:
    seconds = [1.0] * 200 + [1.6] * 80 + [1.0] * 200 + [1.6] * 80
    assert steps_of(verdicts_on(summary(step, spent) for step, spent in enumerate(seconds))) == [200, 480]


def test_checkpoints_and_evaluations_now_and_then_are_no_drop() -> None:
    def one(step: int) -> store.StepSummary:
        checkpoint_s = 4.0 if step % 5 == 0 else 0.0
        eval_s = 5.0 if step >= 200 else 0.0
        return summary(step, 1.0 + checkpoint_s + eval_s, checkpoint=checkpoint_s, eval=eval_s)

    assert verdicts_on(one(step) for step in range(400)) == []


@pytest.mark.parametrize(
    ("before", "after", "cause", "phase"),
    [
        ({"data": 0.1}, {"data": 0.6}, "data", common.PHASE_DATA),
        ({"checkpoint": 0.1}, {"checkpoint": 0.6}, "checkpoints", common.PHASE_CHECKPOINT),
        ({"bubble": 0.1}, {"bubble": 0.4}, "the pipeline's bubble", common.PHASE_FORWARD_BACKWARD),
    ],
)
def test_the_bottleneck_is_what_makes_up_the_added_time(
    before: dict[str, Any], after: dict[str, Any], cause: str, phase: int
) -> None:
    (verdict,) = verdicts_on(summary(s, 1.0, **before) if s < 200 else summary(s, 1.6, **after) for s in range(300))
    assert verdict.message.endswith(f"the bottleneck is likely {cause}")
    assert verdict.phase == phase


def watched(busy_s: Callable[[int, int], float], device: str = "cpu") -> str:
    """Return the message of a drop at step 200, where ranks are busy for ``busy_s(rank, step)`` seconds."""
    detector, messages, busy = ThroughputDrop(), [], [0.0, 0.0]
    for step in range(300):
        result = detector.see_step(view(summary(step, 1.0 if step < 200 else 1.6)))
        messages += [finding.verdict.message for finding in result.findings]
        busy = [before + busy_s(rank, step) for rank, before in enumerate(busy)]
        ranks = [store.RankState(rank=rank, steps_done=step + 1, busy_s=busy[rank], device=device) for rank in range(2)]
        detector = result.next.see_tick(tick(START_UNIX_S + step, ranks)).next  # type: ignore[assignment]
    (message,) = messages
    return message


def test_busier_training_threads_point_to_computation() -> None:
    assert watched(lambda rank, step: 0.9 if rank == 0 or step < 200 else 1.5).endswith("likely computation")


def test_training_threads_that_only_wait_longer_point_to_communication() -> None:
    assert watched(lambda *_: 0.9).endswith("likely communication")


def test_on_gpus_computation_and_communication_are_not_distinguished() -> None:
    assert watched(lambda *_: 0.9, "cuda:0").endswith("likely computation or communication")


@pytest.mark.parametrize(("tokens", "seconds"), [(4000, 3.6), (250, 0.8)])
def test_another_batch_size_is_no_drop(tokens: int, seconds: float) -> None:
    before = [summary(step, 1.0, tokens=1000) for step in range(200)]
    assert verdicts_on([*before, *(summary(step, seconds, tokens=tokens) for step in range(200, 400))]) == []


def test_fewer_tokens_per_second_at_one_batch_size_are_a_drop() -> None:
    assert len(verdicts_on(summary(s, 1.0 if s < 200 else 1.6, tokens=1000) for s in range(400))) == 1


def test_devices_that_do_half_of_what_they_did_are_reported_and_smaller_batches_are_not() -> None:
    (verdict,) = verdicts_on(summary(s, 1.0, mfu=0.45 if s < 200 else 0.2, tokens=1000) for s in range(400))
    assert verdict.message == "since step 200 devices do 20% of what they could, 45% before"
    small = (summary(s, 1.0, mfu=0.45 if s < 200 else 0.2, tokens=1000 if s < 200 else 400) for s in range(400))
    assert verdicts_on(small) == []


def test_a_new_generation_has_a_pace_of_its_own() -> None:
    detector, _ = show(ThroughputDrop(), (summary(step, 1.0) for step in range(200)))
    assert show(detector.restarted(100), (summary(step, 2.0) for step in range(200)))[1] == []


def test_heavy_tailed_noise_is_no_drop() -> None:
    noise = random.Random(2)
    seconds = [noise.lognormvariate(0.0, 0.2) + 10.0 * (noise.random() < 0.02) for _ in range(4000)]
    mfu = [0.4 * noise.lognormvariate(0.0, 0.2) for _ in seconds]
    assert verdicts_on(summary(step, spent, mfu=mfu[step], tokens=1000) for step, spent in enumerate(seconds)) == []


def test_a_steady_run_costs_no_medians_of_all_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = random.Random(4)
    taken: list[object] = []
    monkeypatch.setattr(throughput_drop, "usual_pace", taken.append)
    steady = (summary(s, noise.lognormvariate(0.0, 0.05), mfu=0.4, tokens=1000) for s in range(400))
    assert verdicts_on(steady) == []
    assert taken == []
