"""The bookkeeping of spans: what is counted, what is unknown, and that nothing grows."""

import pytest

from holdfast_hooks.device_time.own_spans import MOST_SPANS, MOST_STEPS, OwnSpans
from tests.trainer_hooks.device_time.fake_gpu import FakeGpu


@pytest.fixture
def gpu() -> FakeGpu:
    return FakeGpu()


@pytest.fixture
def spans(gpu: FakeGpu) -> OwnSpans:
    return OwnSpans(gpu)


def step(spans: OwnSpans, gpu: FakeGpu, own_s: float, wait_s: float) -> None:
    spans.begin_step()
    spans.resume()
    gpu.work(own_s / 2)
    spans.pause()
    gpu.work(wait_s)
    spans.resume()
    gpu.work(own_s / 2)
    spans.end_step()


def test_own_time_is_without_the_waiting(spans: OwnSpans, gpu: FakeGpu) -> None:
    step(spans, gpu, own_s=2.0, wait_s=5.0)
    step(spans, gpu, own_s=3.0, wait_s=0.5)
    spans.read()
    assert (spans.own_s, spans.steps, spans.unknown_steps) == (5.0, 2, 0)


def test_a_step_is_read_when_the_gpu_has_finished_it(spans: OwnSpans, gpu: FakeGpu) -> None:
    gpu.reached_s = 6.9
    step(spans, gpu, own_s=2.0, wait_s=5.0)
    spans.read()
    assert spans.steps == 0
    gpu.reached_s = 7.0
    spans.read()
    spans.read()
    assert (spans.own_s, spans.steps) == (2.0, 1)


def test_a_mark_that_never_comes_holds_up_no_other_step(spans: OwnSpans, gpu: FakeGpu) -> None:
    step(spans, gpu, own_s=1.0, wait_s=1.0)
    gpu.made[1].is_lost = True
    for _ in range(3 * MOST_STEPS):
        step(spans, gpu, own_s=2.0, wait_s=1.0)
        spans.read()
    assert (spans.steps, spans.own_s) == (3 * MOST_STEPS, 6.0 * MOST_STEPS)


def test_marks_are_used_again_and_do_not_grow(spans: OwnSpans, gpu: FakeGpu) -> None:
    for _ in range(500):
        step(spans, gpu, own_s=1.0, wait_s=1.0)
        spans.read()
    assert (len(gpu.made), len(gpu.free)) == (4, 4)


def test_nothing_grows_while_the_gpu_stands_still_or_nobody_reads(spans: OwnSpans, gpu: FakeGpu) -> None:
    gpu.reached_s = -1.0
    for _ in range(10 * MOST_STEPS):
        step(spans, gpu, own_s=1.0, wait_s=1.0)
    assert len(gpu.made) <= 4 * (MOST_STEPS + 1)
    assert spans.why_unknown == "its marks are not read"
    for _ in range(10):
        spans.read()
        for _ in range(MOST_STEPS):
            step(spans, gpu, own_s=1.0, wait_s=1.0)
    assert len(spans._waiting) <= MOST_STEPS
    assert spans.steps == 0


def test_a_capture_makes_the_step_unknown_and_the_next_one_is_known(spans: OwnSpans, gpu: FakeGpu) -> None:
    spans.begin_step()
    spans.resume()
    gpu.is_capturing = True
    spans.pause()
    gpu.is_capturing = False
    spans.resume()
    spans.end_step()
    assert (spans.unknown_steps, spans.why_unknown) == (1, "a CUDA graph is captured in it")
    assert len(gpu.free) == len(gpu.made)
    step(spans, gpu, own_s=1.0, wait_s=1.0)
    spans.read()
    assert (spans.steps, spans.own_s) == (1, 1.0)


def test_a_step_with_too_many_calls_is_unknown(spans: OwnSpans, gpu: FakeGpu) -> None:
    spans.begin_step()
    for _ in range(MOST_SPANS + 5):
        spans.resume()
        spans.pause()
    spans.end_step()
    spans.read()
    assert (spans.steps, spans.unknown_steps) == (0, 1)
    assert len(gpu.free) == len(gpu.made) == 2 * MOST_SPANS


def test_a_step_that_the_loop_has_left_does_not_count(spans: OwnSpans, gpu: FakeGpu) -> None:
    spans.begin_step()
    spans.resume()
    gpu.work(100.0)
    step(spans, gpu, own_s=1.0, wait_s=0.0)
    spans.read()
    assert (spans.steps, spans.own_s) == (1, 1.0)
    assert len(gpu.free) == len(gpu.made)


def test_calls_outside_of_steps_do_nothing(spans: OwnSpans, gpu: FakeGpu) -> None:
    spans.pause()
    spans.resume()
    spans.give_up("no step")
    spans.end_step()
    assert (gpu.made, spans.unknown_steps) == ([], 0)
