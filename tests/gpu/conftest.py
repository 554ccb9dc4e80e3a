"""Tests that need a GPU. Without one they are skipped, and the reason says so."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.trainer_hooks.conftest import SnapshotBench, agent, bench, folder, launch, make_slots

__all__ = ["SnapshotBench", "agent", "bench", "folder", "launch", "make_slots"]

FOLDER = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip before any fixture, because some of them train."""
    if item.get_closest_marker("gpu") is not None and not torch.cuda.is_available():
        pytest.skip("needs a GPU: torch sees none")


@pytest.fixture
def gpu() -> torch.device:
    """The GPU of this process."""
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture
def two_gpus() -> int:
    """Skip the test unless there are two GPUs."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs 2 GPUs")
    return 2


@pytest.fixture
def nccl(gpu: torch.device) -> Iterator[torch.device]:
    """A world of one with NCCL for tensors on the GPU."""
    if not dist.is_nccl_available():
        pytest.skip("needs NCCL: this torch has none")
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=0, world_size=1)
    yield gpu
    dist.destroy_process_group()
