"""The own time on a GPU on its way into a rank's reports, with an agent's server and a fake GPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import holdfast_hooks
from holdfast_hooks import Phase
from holdfast_hooks.device_time import device_time
from holdfast_proto.rank_context import RankContext
from holdfast_proto.v1 import common_pb2 as common
from tests.trainer_hooks.device_time.fake_gpu import FakeGpu

STEPS = 6


def train(gpu: FakeGpu, device: str | None = None) -> None:
    with holdfast_hooks.attach(device=device) as hooks:
        for _ in hooks.steps(until=STEPS):
            hooks.enter(Phase.DATA)
            gpu.work(100.0)
            hooks.enter(Phase.FORWARD_BACKWARD)
            gpu.work(0.25)


def test_reports_hold_the_own_time_of_all_steps_but_the_one_that_is_not_over(
    agent: Any, launch: Callable[..., RankContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = FakeGpu()
    monkeypatch.setattr(device_time, "CudaMarks", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    launch()
    before = vars(torch.distributed.ProcessGroup)["allreduce"]
    train(gpu)
    last = agent.of("report")[-1]
    assert last.device_steps == STEPS - 1
    assert last.device_own_s == 0.25 * last.device_steps
    assert (last.own_time_source, last.own_time_reason) == (common.OWN_TIME_SOURCE_EVENTS, "")
    assert vars(torch.distributed.ProcessGroup)["allreduce"] is before


def test_a_rank_without_a_gpu_reports_no_step(agent: Any, launch: Callable[..., RankContext]) -> None:
    launch()
    train(FakeGpu())
    last = agent.of("report")[-1]
    assert (last.device_steps, last.own_time_source) == (0, common.OWN_TIME_SOURCE_HOST)


def test_a_rank_whose_work_cannot_be_separated_says_so_with_the_reason(
    agent: Any, launch: Callable[..., RankContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = FakeGpu()
    gpu.is_capturing = True
    monkeypatch.setattr(device_time, "CudaMarks", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    launch()
    train(gpu, device="cuda:0")
    last = agent.of("report")[-1]
    assert last.own_time_source == common.OWN_TIME_SOURCE_NONE
    assert last.own_time_reason == "a CUDA graph is captured in it"
