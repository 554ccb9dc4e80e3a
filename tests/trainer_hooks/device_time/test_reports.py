"""The own time on a GPU on its way into a rank's reports, with an agent's server and a fake GPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import holdfast_hooks
from holdfast_hooks import Phase
from holdfast_hooks.device_time import device_time
from holdfast_proto.rank_context import RankContext
from tests.trainer_hooks.device_time.fake_gpu import FakeGpu

STEPS = 6


def train(gpu: FakeGpu) -> None:
    with holdfast_hooks.attach() as hooks:
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
    assert vars(torch.distributed.ProcessGroup)["allreduce"] is before


def test_a_rank_without_a_gpu_reports_no_step(agent: Any, launch: Callable[..., RankContext]) -> None:
    launch()
    train(FakeGpu())
    assert agent.of("report")[-1].device_steps == 0
