"""Hooks find the GPU of their rank, and report its memory."""

import pytest
import torch

from holdfast_hooks.telemetry.device_memory import RankMemory
from holdfast_hooks.telemetry.own_device import OwnDevice

pytestmark = pytest.mark.gpu


def test_the_gpu_of_the_state_is_found(gpu: torch.device) -> None:
    device = OwnDevice(None, {"model": torch.nn.Linear(4, 4).to(gpu)}, may_have_gpus=True)
    device.look_at_state()
    assert (device.name, device.gpu) == (str(gpu), gpu.index)


def test_the_gpu_that_is_used_is_found(gpu: torch.device) -> None:
    held = torch.ones(5 << 20, device=gpu)
    device = OwnDevice(None, {}, may_have_gpus=True)
    device.note_current()
    device.look(stepped=True)
    assert (device.name, device.gpu) == (str(gpu), gpu.index)
    assert RankMemory(device).status().allocated_bytes == torch.cuda.memory_allocated(gpu) >= held.nbytes


def test_the_gpu_of_the_state_is_found_where_it_is_not_the_current_one(two_gpus: int) -> None:
    assert two_gpus == 2
    with torch.cuda.device(0):
        device = OwnDevice(None, {"model": torch.nn.Linear(4, 4).to("cuda:1")}, may_have_gpus=True)
        device.look_at_state()
    assert device.name == "cuda:1"


def test_a_gpu_that_torch_does_not_have_is_searched_for(gpu: torch.device, caplog: pytest.LogCaptureFixture) -> None:
    device = OwnDevice("cuda:99", {}, may_have_gpus=True)
    held = torch.zeros(1 << 20, device=gpu)
    device.note_current()
    device.look(stepped=True)
    assert (device.name, device.gpu) == (f"cuda:{held.get_device()}", held.get_device())
    assert RankMemory(device).status().limit_bytes > 0
    (line,) = caplog.messages
    assert 'attach(device="cuda:99")' in line
