"""What differs between CPU with gloo and CUDA with NCCL, in one place."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import torch
import torch.distributed as dist

from holdfast_hooks import ConfigurationError

_BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}


@dataclass(frozen=True)
class Device:
    """The device of this rank."""

    kind: str
    """``cpu`` or ``cuda``."""
    torch_device: torch.device

    @property
    def backend(self) -> str:
        """The backend that a process group on this device needs."""
        return _BACKENDS[self.kind]


def open_device(wanted: Literal["auto", "cpu", "cuda"], environment: Mapping[str, str] = os.environ) -> Device:
    """Take this rank's device, the one of its LOCAL_RANK, and make computing on it deterministic.

    Raises ConfigurationError if this machine does not have it.
    """
    local_rank = int(environment.get("LOCAL_RANK", "0"))
    local_ranks = int(environment.get("LOCAL_WORLD_SIZE", "1"))
    torch.use_deterministic_algorithms(True)
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        if local_ranks > 1:
            torch.set_num_threads(1)  # ranks that share cores and threads wait for each other's slices
        return Device("cpu", torch.device("cpu"))
    if local_rank >= torch.cuda.device_count():
        raise ConfigurationError(
            f"distributed.device is {wanted}, but this machine has {torch.cuda.device_count()} CUDA devices for "
            f'{local_ranks} ranks: set distributed.device = "cpu" or start fewer ranks'
        )
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS is not deterministic
    torch.cuda.set_device(local_rank)
    return Device("cuda", torch.device("cuda", local_rank))


@contextmanager
def process_group(device: Device, *, timeout_s: float, environment: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Join the other ranks, or be a world of one if nobody started any.

    After an error the group is not taken down: that would wait for peers that may be gone.
    """
    timeout = timedelta(seconds=timeout_s)
    if "WORLD_SIZE" in environment:
        dist.init_process_group(device.backend, timeout=timeout)
    else:
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(device.backend, timeout=timeout, store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()
