"""Which loops can be separated, with real process groups on the CPU and a fake GPU."""

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from holdfast_hooks.device_time.device_time import DeviceTime
from holdfast_hooks.device_time.group_calls import COLLECTIVES, MESSAGES
from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.phases import Phase
from holdfast_hooks.telemetry.timeline import Timeline
from holdfast_proto.v1 import common_pb2 as common
from tests.trainer_hooks.device_time.fake_gpu import FakeGpu
from tests.trainer_hooks.test_step_cost import counted

STEPS = 8
MOST_INSTRUCTIONS = 1000
"""They take about 4 us, and the records of the events come on top."""
Step = Callable[[], object]


@pytest.fixture(autouse=True)
def _world() -> Iterator[None]:
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Loop:
    def __init__(self) -> None:
        self.gpu = FakeGpu()
        self.moments: list[tuple[int, int]] = []
        self.timeline = Timeline(lambda step, phase, _: self.moments.append((step, phase)))
        self.time = DeviceTime(self.timeline, OnceLog(), self.gpu)
        self.time.follow()

    def run(self, step: Step, first: int = 0, count: int = STEPS) -> None:
        for number in range(first, first + count):
            self.timeline.begin(number)
            step()
            self.timeline.end()
        self.timeline.begin(first + count)
        self.time.read()

    def source(self) -> tuple[int, str]:
        return self.time.source("cuda:0", stepped=True)

    @property
    def why_unknown(self) -> str:
        return self.time._spans.why_unknown


@pytest.fixture
def loop() -> Iterator[Loop]:
    running = Loop()
    yield running
    running.time.close()


def test_only_forward_backward_and_optimizer_count(loop: Loop) -> None:
    def step() -> None:
        for phase in (Phase.DATA, Phase.FORWARD_BACKWARD, Phase.OPTIMIZER, Phase.EVAL, Phase.CHECKPOINT):
            loop.timeline.enter(phase)
            loop.gpu.work(10.0**phase)

    loop.run(step)
    own_s = 10.0**Phase.FORWARD_BACKWARD + 10.0**Phase.OPTIMIZER
    assert loop.time.own_s == pytest.approx(STEPS * own_s)


def test_the_wait_behind_a_call_of_gloo_is_left_out_up_to_the_next_phase(loop: Loop) -> None:
    value = torch.ones(4)

    def step() -> None:
        loop.gpu.work(1.0)
        dist.all_reduce(value)
        loop.gpu.work(50.0)  # the wait: gloo's Work is over only after the call has returned
        loop.timeline.enter(Phase.OPTIMIZER)
        loop.gpu.work(2.0)

    loop.run(step)
    assert (loop.time.steps, loop.time.own_s) == (STEPS, 3.0 * STEPS)


def test_a_call_that_returns_no_work_is_over(loop: Loop) -> None:
    loop.timeline.begin(0)
    loop.gpu.work(1.0)
    loop.time.call_begins()
    loop.gpu.work(50.0)
    loop.time.call_returns(is_over=True)
    loop.gpu.work(2.0)
    loop.timeline.begin(1)
    loop.time.read()
    assert (loop.time.steps, loop.time.own_s) == (1, 3.0)


def test_asynchronous_calls_cannot_be_separated(loop: Loop) -> None:
    assert loop.source() == (common.OWN_TIME_SOURCE_UNSPECIFIED, "")
    loop.run(lambda: dist.all_reduce(torch.ones(4), async_op=True).wait())
    assert loop.time.steps == 0
    assert loop.why_unknown.startswith("it makes asynchronous calls")
    assert loop.source() == (common.OWN_TIME_SOURCE_NONE, loop.why_unknown)


def test_a_loop_that_stops_to_be_separable_is_reported_and_one_odd_step_is_not(
    loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    events = (common.OWN_TIME_SOURCE_EVENTS, "")
    asynchronous = lambda: dist.all_reduce(torch.ones(4), async_op=True).wait()  # noqa: E731
    with caplog.at_level(logging.INFO, "holdfast_hooks"):
        loop.run(lambda: loop.gpu.work(1.0))
        loop.run(asynchronous, first=STEPS, count=1)
        loop.run(lambda: loop.gpu.work(1.0), first=STEPS + 1)
        assert (loop.source(), caplog.messages) == (events, [])
        assert (loop.time.steps, loop.time.own_s) == (2 * STEPS, 2.0 * STEPS)
        loop.run(asynchronous, first=3 * STEPS, count=2 * STEPS)
        source, reason = loop.source()
        assert (source, reason) == (common.OWN_TIME_SOURCE_NONE, loop.why_unknown)
        loop.run(lambda: loop.gpu.work(1.0), first=6 * STEPS, count=2 * STEPS)
        assert loop.source() == events
    assert caplog.messages == [f"a step's own time on the GPU cannot be separated: {reason}"]


def test_a_gpu_that_was_used_too_late_is_told_after_the_first_step(loop: Loop) -> None:
    late = DeviceTime(loop.timeline, OnceLog(), loop.gpu)  # it was never installed
    assert late.source("cuda:0", stepped=False)[0] == common.OWN_TIME_SOURCE_UNSPECIFIED
    too_late = (common.OWN_TIME_SOURCE_NONE, "torch had not used the GPU before the first step")
    assert late.source("cuda:0", stepped=True) == too_late
    assert late.source("", stepped=True)[0] == common.OWN_TIME_SOURCE_UNSPECIFIED
    assert late.source("cpu", stepped=False) == (common.OWN_TIME_SOURCE_HOST, "")


def test_calls_that_python_does_not_see_cannot_be_separated(loop: Loop) -> None:
    from torch.distributed import _functional_collectives as functional

    world = cast(dist.ProcessGroup, dist.group.WORLD)
    loop.run(lambda: functional.all_reduce(torch.ones(4), "sum", world).add(1))
    assert (loop.time.steps, loop.why_unknown) == (0, "it makes calls with other ranks that Python does not see")


def test_calls_of_other_threads_do_not_matter(loop: Loop) -> None:
    def step() -> None:
        loop.gpu.work(2.0)
        for is_async in (False, True):
            arguments = {"tensor": torch.ones(4), "async_op": is_async}
            thread = threading.Thread(target=dist.all_reduce, kwargs=arguments)
            thread.start()
            thread.join()
        loop.gpu.work(1.0)

    loop.run(step)
    assert (loop.time.steps, loop.time.own_s) == (STEPS, 3.0 * STEPS)


def model_of(loop: Loop, *, wait_s: float, **options: Any) -> tuple[DistributedDataParallel, Step]:
    """Return a data-parallel model and a step whose backward pass works for 1 s and then waits."""

    class Layer(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            loop.gpu.work(1.0)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> torch.Tensor:
            loop.gpu.work(1.0)
            gradient: torch.Tensor = gradients[0]
            return gradient

    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)), **options)

    def step() -> None:
        Layer.apply(model(torch.ones(2, 4))).sum().backward()  # type: ignore[no-untyped-call]
        loop.gpu.work(wait_s)
        loop.timeline.enter(Phase.OPTIMIZER)
        loop.gpu.work(0.5)

    return model, step


def test_data_parallel_models_are_separated_from_the_wait_for_their_reducer(loop: Loop) -> None:
    _, step = model_of(loop, wait_s=30.0)
    loop.run(step)
    assert (loop.time.steps >= STEPS - 4, loop.source()[0]) == (True, common.OWN_TIME_SOURCE_EVENTS)
    assert loop.time.own_s == 2.5 * loop.time.steps


def test_data_parallel_models_that_send_buffers_cannot_be_separated(loop: Loop) -> None:
    model, step = model_of(loop, wait_s=30.0)
    model.module.register_buffer("mean", torch.zeros(4))
    loop.run(step)
    assert loop.time.steps == 0


def test_a_step_whose_last_gradient_is_not_seen_is_unknown(loop: Loop) -> None:
    _, step = model_of(loop, wait_s=30.0, find_unused_parameters=True)
    loop.run(step)
    known = loop.time.steps
    assert known

    def skip_the_first_layer() -> None:
        step()
        loop.time._saw_last_gradient = False

    loop.run(skip_the_first_layer, first=STEPS)
    assert loop.time.steps <= known + 1


def test_closing_puts_everything_back(loop: Loop) -> None:
    kind: Any = dist.ProcessGroup
    loop.time.close()
    untouched = {name: vars(kind)[name] for name in (*COLLECTIVES, *MESSAGES) if name in vars(kind)}
    replay = vars(torch.cuda.CUDAGraph)["replay"]
    again = Loop()
    assert vars(kind)["allreduce"] is not untouched["allreduce"]
    again.time.close()
    assert {name: vars(kind)[name] for name in untouched} == untouched
    assert vars(torch.cuda.CUDAGraph)["replay"] is replay
    moments = len(again.moments)
    again.run(lambda: again.gpu.work(1.0))
    assert (again.time.steps, len(again.moments)) == (0, moments + STEPS + 1)


def test_every_moment_reaches_the_black_box(loop: Loop) -> None:
    loop.timeline.begin(3)
    loop.timeline.enter(Phase.OPTIMIZER)
    assert loop.moments[-2:] == [(3, Phase.FORWARD_BACKWARD), (3, Phase.OPTIMIZER)]


def test_a_gpu_that_fails_ends_the_measurement_and_not_the_training(loop: Loop) -> None:
    error = RuntimeError("CUDA error: an illegal memory access was encountered")
    loop.gpu.mark = mock.Mock(side_effect=error)  # type: ignore[method-assign]
    loop.run(lambda: dist.all_reduce(torch.ones(2)))
    source, reason = loop.source()
    assert (loop.time.steps, source) == (0, common.OWN_TIME_SOURCE_NONE)
    assert "the rank's log has its error" in reason


def test_without_a_gpu_nothing_is_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    before = vars(dist.ProcessGroup)["allreduce"]
    timeline = Timeline(lambda step, phase, unix_ns: None)
    moment = timeline._moment
    DeviceTime(timeline, OnceLog()).install()
    assert vars(dist.ProcessGroup)["allreduce"] is before
    assert timeline._moment is moment


def test_a_step_costs_the_training_thread_few_instructions(loop: Loop) -> None:
    def step_of(timeline: Timeline) -> Step:
        def step() -> None:
            timeline.begin(timeline.step + 1)
            timeline.enter(Phase.DATA)
            timeline.enter(Phase.FORWARD_BACKWARD)
            timeline.enter(Phase.OPTIMIZER)
            timeline.end()

        return step

    plain = step_of(Timeline(lambda step, phase, _: None))
    followed = step_of(loop.timeline)
    for _ in range(5):
        followed()
        loop.time.read()
    with counted() as of_followed:
        followed()
    with counted() as of_plain:
        plain()
    assert of_followed.instructions - of_plain.instructions < MOST_INSTRUCTIONS
