"""The own time on a GPU on its way into a rank's reports, with an agent's server and a fake GPU."""

from typing import Any

import pytest
import torch

import holdfast_hooks
from holdfast_hooks import Phase
from holdfast_hooks.device_time import device_time
from holdfast_proto.v1 import common_pb2 as common
from tests.trainer_hooks.device_time.fake_gpu import FakeGpu

STEPS = 6


@pytest.fixture
def gpu(launched: object, monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """The GPU of a rank that an agent has started."""
    gpu = FakeGpu()
    monkeypatch.setattr(device_time, "CudaMarks", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    return gpu


def trained(agent: Any, gpu: FakeGpu, device: str | None = None) -> Any:
    """Train for some steps and return the last report."""
    with holdfast_hooks.attach(device=device) as hooks:
        for _ in hooks.steps(until=STEPS):
            hooks.enter(Phase.DATA)
            gpu.work(100.0)
            hooks.enter(Phase.FORWARD_BACKWARD)
            gpu.work(0.25)
    return agent.of("report")[-1]


def test_reports_hold_the_own_time_of_all_steps_but_the_one_that_is_not_over(agent: Any, gpu: FakeGpu) -> None:
    before = vars(torch.distributed.ProcessGroup)["allreduce"]
    last = trained(agent, gpu)
    assert (last.device_steps, last.device_own_s) == (STEPS - 1, 0.25 * (STEPS - 1))
    assert (last.own_time_source, last.own_time_reason) == (common.OWN_TIME_SOURCE_EVENTS, "")
    assert vars(torch.distributed.ProcessGroup)["allreduce"] is before


def test_a_rank_without_a_gpu_reports_no_step(agent: Any, launched: object) -> None:
    last = trained(agent, FakeGpu())
    assert (last.device_steps, last.own_time_source) == (0, common.OWN_TIME_SOURCE_HOST)


def test_a_rank_whose_work_cannot_be_separated_says_so_with_the_reason(agent: Any, gpu: FakeGpu) -> None:
    gpu.is_capturing = True
    last = trained(agent, gpu, device="cuda:0")
    assert (last.own_time_source, last.own_time_reason) == (
        common.OWN_TIME_SOURCE_NONE,
        "a CUDA graph is captured in it",
    )
