"""Numbers of the GPU arrive late, and nobody waits for them."""

import time

import pytest
import torch

from benchmarks.gpu.timing import busy_for
from holdfast_hooks.telemetry.deferred import DeferredNumbers, to_number
from holdfast_hooks.telemetry.own_gradients import deferred

pytestmark = pytest.mark.gpu


def test_a_number_behind_a_long_kernel_is_owed_and_then_right(gpu: torch.device) -> None:
    value = torch.tensor(2.5, device=gpu)
    torch.cuda.synchronize()
    busy_for(1.0, "cuda")
    began_s = time.monotonic()
    number = to_number(value + 1)
    assert isinstance(number, DeferredNumbers)
    assert number.read() is None
    assert time.monotonic() - began_s < 0.4, "the host waited for the GPU"
    torch.cuda.synchronize()
    assert number.read() == [3.5]


def test_sums_of_several_tensors_come_with_one_copy(gpu: torch.device) -> None:
    numbers = deferred([torch.tensor(float(value), device=gpu) for value in range(5)])
    assert len(numbers.tensors) == 1
    torch.cuda.synchronize()
    assert numbers.read() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_sums_on_the_gpu_and_on_the_host_come_together(gpu: torch.device) -> None:
    numbers = deferred([torch.tensor(1.0, device=gpu), torch.tensor(2.0)])
    torch.cuda.synchronize()
    assert numbers.read() == [1.0, 2.0]


def test_sums_on_two_gpus_are_owed_until_both_have_arrived(two_gpus: int) -> None:
    first, second = (torch.tensor(float(index), device=f"cuda:{index}") for index in range(2))
    torch.cuda.synchronize(0)
    with torch.cuda.device(1):
        busy_for(1.0, "cuda")
        second = second + 1
    numbers = DeferredNumbers.of((first, second))
    assert numbers.read() is None
    torch.cuda.synchronize(1)
    assert numbers.read() == [0.0, 2.0]
