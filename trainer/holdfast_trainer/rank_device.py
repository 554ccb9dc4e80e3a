"""The device of a rank and its process group: everything that differs between CPU with gloo and CUDA with NCCL."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import torch
import torch.distributed as dist

from holdfast_hooks import ConfigurationError


@dataclass(frozen=True)
class RankDevice:
    """The device of this rank."""

    kind: str
    """``cpu`` or ``cuda``."""
    torch_device: torch.device
    backend: str
    """Backend of the process groups for tensors on this device."""


def open_device(
    wanted: Literal["auto", "cpu", "cuda"],
    environment: Mapping[str, str] = os.environ,
    *,
    backend: Literal["auto", "gloo"] = "auto",
) -> RankDevice:
    """Select the device of this rank by its LOCAL_RANK, and make computations on it deterministic.

    NCCL refuses two ranks on one GPU. gloo copies through the host, so several ranks can share a GPU: they take the
    GPUs in turn. Raises ConfigurationError if this machine does not have the device.
    """
    local_rank = int(environment.get("LOCAL_RANK", "0"))
    local_ranks = int(environment.get("LOCAL_WORLD_SIZE", "1"))
    torch.use_deterministic_algorithms(True)
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        if local_ranks > 1:
            torch.set_num_threads(1)  # With more threads than cores, ranks would wait for each other.
        return RankDevice("cpu", torch.device("cpu"), "gloo")
    devices = torch.cuda.device_count()
    if devices == 0 or (local_rank >= devices and backend != "gloo"):
        raise ConfigurationError(
            f"distributed.device is {wanted}, but this machine has {devices} CUDA devices for {local_ranks} ranks: "
            + _remedy(devices)
        )
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is not deterministic without it.
    index = local_rank % devices
    torch.cuda.set_device(index)
    return RankDevice("cuda", torch.device("cuda", index), "gloo" if backend == "gloo" else "cpu:gloo,cuda:nccl")


def _remedy(devices: int) -> str:
    if devices == 0:
        return 'set distributed.device = "cpu"'
    return 'start fewer ranks, or set distributed.backend = "gloo" to let them share'


@contextmanager
def process_group(
    device: RankDevice, *, timeout_s: float, environment: Mapping[str, str] = os.environ
) -> Iterator[None]:
    """Join the other ranks, or form a world of one if no launcher has set WORLD_SIZE.

    After an error the group stays open: closing it would wait for peers that may be gone.
    """
    timeout = timedelta(seconds=timeout_s)
    if "WORLD_SIZE" in environment:
        dist.init_process_group(device.backend, timeout=timeout)
    else:
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(device.backend, timeout=timeout, store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()
