"""The rank's own time on the GPU, with real events."""

import time
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.gpu.timing import busy_for
from holdfast_hooks.device_time.device_time import DeviceTime
from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.phases import Phase
from holdfast_hooks.telemetry.timeline import Timeline
from holdfast_proto.v1 import common_pb2 as common

pytestmark = pytest.mark.gpu

Step = Callable[[], object]


class Loop:
    """A training loop whose steps are followed."""

    def __init__(self) -> None:
        self.timeline = Timeline(lambda step, phase, unix_ns: None)
        self.time = DeviceTime(self.timeline, OnceLog())
        self.time.install()

    def run(self, step: Step, count: int = 6) -> None:
        for number in range(count):
            self.timeline.begin(number)
            step()
            self.timeline.end()
        self.timeline.begin(count)
        torch.cuda.synchronize()
        self.time.read()


@pytest.fixture
def loop(gpu: torch.device) -> Iterator[Loop]:
    torch.ones(1, device=gpu)
    running = Loop()
    yield running
    running.time.close()


def test_the_time_of_a_kernel_is_counted_and_that_of_other_phases_is_not(loop: Loop) -> None:
    def step() -> None:
        loop.timeline.enter(Phase.DATA)
        busy_for(0.2, "cuda")
        loop.timeline.enter(Phase.FORWARD_BACKWARD)
        busy_for(0.05, "cuda")

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    busy_for(0.05, "cuda")
    end.record()
    torch.cuda.synchronize()
    one_s = start.elapsed_time(end) / 1000
    loop.run(step)
    assert loop.time.steps == 6
    assert loop.time.source("cuda:0", stepped=True) == (common.OWN_TIME_SOURCE_EVENTS, "")
    assert loop.time.own_s / 6 == pytest.approx(one_s, rel=0.3)


def test_the_host_does_not_wait(loop: Loop) -> None:
    busy_for(1.0, "cuda")
    began_s = time.monotonic()
    for number in range(3):
        loop.timeline.begin(number)
        loop.timeline.end()
        loop.time.read()
    assert time.monotonic() - began_s < 0.4
    assert loop.time.steps == 0


def test_a_step_with_a_cuda_graph_is_unknown(loop: Loop, gpu: torch.device) -> None:
    value = torch.ones(8, device=gpu)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value.add_(1)
        loop.time.call_begins()
        loop.time.call_returns(is_over=True)
    loop.run(graph.replay)
    assert loop.time.steps == 0
    reason = "it replays a CUDA graph, whose calls cannot be seen"
    assert loop.time.source("cuda:0", stepped=True) == (common.OWN_TIME_SOURCE_NONE, reason)


def test_calls_that_return_behind_their_wait_leave_the_time_known(loop: Loop, nccl: torch.device) -> None:
    value = torch.ones(1 << 20, device=nccl)
    loop.time._calls.install()

    def step() -> None:
        busy_for(0.01, "cuda")
        dist.all_reduce(value)
        busy_for(0.01, "cuda")

    loop.run(step)
    assert loop.time.steps >= 5
    known = loop.time.steps
    loop.run(lambda: dist.all_reduce(value, async_op=True))
    assert loop.time.steps <= known + 1


def test_the_backward_pass_of_data_parallel_models_is_separated(loop: Loop, nccl: torch.device) -> None:
    model = DistributedDataParallel(torch.nn.Linear(512, 512).to(nccl))
    x = torch.ones(64, 512, device=nccl)
    loop.time._calls.install()
    loop.run(lambda: model(x).sum().backward(), count=12)
    assert loop.time.steps >= 6
