"""The only place that knows DTensor: this rank's part of a tensor that is spread over ranks."""

import functools
import sys
import zlib
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Placement


def is_dtensor(value: object) -> "TypeGuard[DTensor]":
    """Whether ``value`` is spread over ranks. Imports nothing."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def local_part(value: "DTensor") -> "tuple[torch.Tensor, tuple[int, ...], tuple[int, ...]]":
    """Return this rank's part, the shape of the whole, and where in it the part starts."""
    import torch

    with torch.no_grad():
        local = value.to_local()
    global_shape = tuple(value.shape)
    return local, global_shape, _global_offset(global_shape, value.device_mesh, tuple(value.placements))


def writer_of(name: str, value: "DTensor") -> int:
    """Return the one of the ranks with the same part as this one that is to write it into a checkpoint.

    Every rank finds the same answer alone, and the tensors of different names fall to different ranks. Raises
    TypeError if the ranks' parts are summands: there is no whole that they are parts of.
    """
    if any(placement.is_partial() for placement in value.placements):
        raise TypeError(f"{name}: a DTensor that is not reduced yet cannot be part of a snapshot; redistribute it")
    ranks = ranks_alike(value)
    return ranks[zlib.crc32(name.encode()) % len(ranks)]


def ranks_alike(value: "DTensor") -> list[int]:
    """Return the ranks that hold the same part of a reduced tensor as this one, which is among them."""
    coordinate = value.device_mesh.get_coordinate()
    assert coordinate is not None
    alike = tuple(
        slice(None) if placement.is_replicate() else index
        for index, placement in zip(coordinate, value.placements, strict=True)
    )
    ranks: list[int] = value.device_mesh.mesh[alike].flatten().tolist()
    return ranks


def distribute_like(local: "torch.Tensor", like: "DTensor") -> "DTensor":
    """Make ``local`` this rank's part of a tensor that is spread as ``like`` is. No communication."""
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


@functools.cache
def _global_offset(
    global_shape: tuple[int, ...], mesh: "DeviceMesh", placements: "tuple[Placement, ...]"
) -> tuple[int, ...]:
    from torch.distributed.tensor import _utils

    compute: Any = _utils.compute_local_shape_and_global_offset
    _, offset = compute(global_shape, mesh, placements)
    return tuple(offset)
