"""The memory that the hooks report is that of torch's allocator on the GPU."""

import subprocess

import pytest
import torch

from holdfast_hooks.telemetry.device_memory import CudaMemory, RankMemory
from holdfast_hooks.telemetry.own_device import OwnDevice

pytestmark = pytest.mark.gpu


def test_allocated_and_reserved_bytes_are_those_of_torch(gpu: torch.device) -> None:
    held = torch.ones(5 << 20, device=gpu)
    status = RankMemory(OwnDevice(str(gpu), {}, may_have_gpus=True)).status()
    assert status.allocated_bytes == torch.cuda.memory_allocated(gpu) >= held.nbytes
    assert status.reserved_bytes == torch.cuda.memory_reserved(gpu)
    assert status.limit_bytes == torch.cuda.get_device_properties(gpu).total_memory


def test_an_allocation_that_fails_is_counted(gpu: torch.device) -> None:
    memory = CudaMemory(gpu.index)
    before = memory.status()
    with pytest.raises(torch.cuda.OutOfMemoryError):
        torch.empty(2 * before.limit_bytes, dtype=torch.uint8, device=gpu)
    assert memory.status().ooms == before.ooms + 1


def test_the_uuid_is_that_of_nvidia_smi(gpu: torch.device) -> None:
    torch.ones(1, device=gpu)
    try:
        command = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
        listed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"needs nvidia-smi: {error}")
    assert CudaMemory(gpu.index).uuid() in listed
