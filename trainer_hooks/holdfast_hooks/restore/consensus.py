"""Questions to all ranks of the world, which all of them ask at the same time."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast_hooks.identity import Identity
from holdfast_hooks.state.encoding import Image

if TYPE_CHECKING:
    import torch


def highest(
    numbers: Sequence[int], live: Image, group: "torch.distributed.ProcessGroup | None" = None
) -> list[int] | None:
    """Return for each of this rank's numbers the highest one of all ranks; None if ranks cannot be asked.

    This is one collective of ``group``, by default of all ranks. So each of them must ask for the same numbers at the
    same time. ``live``, this rank's state, may show the device to run it on. Without a process group, a world of one
    answers for itself.
    """
    torch = sys.modules.get("torch")
    if torch is None or not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return list(numbers) if Identity.from_environment().world_size == 1 else None
    said = torch.tensor(numbers, dtype=torch.int64, device=_device_of(_gpus(live), group))
    torch.distributed.all_reduce(said, torch.distributed.ReduceOp.MAX, group=group)
    return [int(number) for number in said.tolist()]


def gathered(numbers: Sequence[int], live: Image) -> list[list[int]]:
    """Return the numbers of each rank, in the order of ranks; only this rank's if ranks cannot be asked.

    This is one collective of all ranks, as in :func:`highest`.
    """
    torch = sys.modules.get("torch")
    if torch is None or not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return [list(numbers)]
    own = torch.tensor(numbers, dtype=torch.int64, device=_device_of(_gpus(live), None))
    of_ranks = [torch.empty_like(own) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(of_ranks, own)
    return [[int(number) for number in of_rank.tolist()] for of_rank in of_ranks]


def largest(numbers: Sequence[float], gpus: "Sequence[torch.device]" = ()) -> list[float]:
    """Return for each of this rank's numbers, of which none is NaN, the largest one of all ranks of the process group.

    This is one collective of all ranks, as in :func:`highest`. ``gpus``: may show the device to run it on.
    """
    import torch

    said = torch.tensor(numbers, dtype=torch.float64, device=_device_of(gpus, None))
    torch.distributed.all_reduce(said, torch.distributed.ReduceOp.MAX)
    return [float(number) for number in said.tolist()]


def anywhere(
    answers: Sequence[bool], live: Image, group: "torch.distributed.ProcessGroup | None" = None
) -> list[bool] | None:
    """Return for each of this rank's answers whether any rank answers yes; None if ranks cannot be asked.

    See :func:`highest`.
    """
    found = highest([int(answer) for answer in answers], live, group)
    return None if found is None else [bool(number) for number in found]


def everywhere(answer: bool, live: Image, group: "torch.distributed.ProcessGroup | None" = None) -> bool:
    """Return whether all ranks of ``group`` answer yes; if they cannot be asked, this rank's answer."""
    doubts = anywhere([not answer], live, group)
    return answer if doubts is None else not doubts[0]


def _gpus(live: Image) -> "list[torch.device]":
    """Return the devices of a state, without the host memory of optimizers."""
    return [part.local.device for part in live.parts if part.local.device.type != "cpu"]


def _device_of(gpus: "Sequence[torch.device]", group: "torch.distributed.ProcessGroup | None") -> "torch.device | str":
    """Return a device on which the process group can reduce, of the same kind on all ranks.

    A group may have one backend for the CPU and another one for GPUs, and a rank may know no GPU. So with gloo it is
    the CPU, whatever the GPUs are. Else it is the first of ``gpus``. If there is none, the group decides.
    """
    import torch

    backends = torch.distributed.get_backend_config(group)  # such as "cpu:gloo,cuda:nccl"
    kinds = [kind.partition(":")[0] for kind in backends.split(",")]
    if gpus and "cpu:gloo" not in backends:
        return gpus[0]
    if "cpu" in kinds:
        return "cpu"
    bound = getattr(group or torch.distributed.group.WORLD, "bound_device_id", None)
    return bound or torch.device(kinds[0], torch.get_device_module(kinds[0]).current_device())
