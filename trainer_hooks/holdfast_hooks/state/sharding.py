"""This rank's part of a tensor that is spread over ranks. Only this file knows DTensor."""

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
    """Return this rank's part, the shape of the whole tensor, and the offset of the part in it."""
    import torch

    with torch.no_grad():
        local = value.to_local()
    global_shape = tuple(value.shape)
    offset = _global_offset(global_shape, value.device_mesh, tuple(value.placements))
    return local, global_shape, _recorded_offset(value) if offset is None else offset


def writer_of(name: str, value: "DTensor") -> int:
    """Return the rank that writes this rank's part into a checkpoint, of all ranks that hold the same part.

    Every rank computes the same answer without asking. The choice depends on the name, so that the work spreads over
    the ranks. Raises TypeError if the parts are summands, because those have no place in a whole tensor.
    """
    if any(placement.is_partial() for placement in value.placements):
        raise TypeError(f"{name}: a DTensor that is not reduced yet cannot be part of a snapshot; redistribute it")
    ranks = ranks_alike(value)
    return ranks[zlib.crc32(name.encode()) % len(ranks)]


def ranks_alike(value: "DTensor") -> list[int]:
    """Return the ranks that hold the same part of a reduced tensor as this rank, and this rank."""
    coordinate = value.device_mesh.get_coordinate()
    assert coordinate is not None
    alike = tuple(
        slice(None) if placement.is_replicate() else index
        for index, placement in zip(coordinate, value.placements, strict=True)
    )
    ranks: list[int] = value.device_mesh.mesh[alike].flatten().tolist()
    return ranks


def distribute_like(local: "torch.Tensor", like: "DTensor") -> "DTensor":
    """Return a tensor that is spread like ``like``, with ``local`` as this rank's part. No communication."""
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


@functools.cache
def _global_offset(
    global_shape: tuple[int, ...], mesh: "DeviceMesh", placements: "tuple[Placement, ...]"
) -> tuple[int, ...] | None:
    """Return the offset of this rank's part; None if torch has no private function for it anymore."""
    try:
        from torch.distributed.tensor import _utils

        compute: Any = _utils.compute_local_shape_and_global_offset
    except (ImportError, AttributeError):
        return None
    _, offset = compute(global_shape, mesh, placements)
    return tuple(offset)


def _recorded_offset(value: "DTensor") -> tuple[int, ...]:
    """Return the offset that torch's own checkpoints would record. This takes longer, and is not cached."""
    if any(placement.is_partial() for placement in value.placements):
        return (0,) * value.ndim  # it has no place in a whole tensor: see writer_of()
    [chunk] = value.__create_chunk_list__()  # type: ignore[no-untyped-call]
    return tuple(chunk.offsets)
