"""Finds the parameters, or parts of them, that several ranks must hold alike.

Only two kinds are certain: parameters that ``DistributedDataParallel`` keeps equal, and DTensors along the axes of
their mesh on which they are replicated. Any other plain tensor may be one rank's own, or a replica: see plain.py.
"""

import gc
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast_hooks.state.counterparts import named_parameters
from holdfast_hooks.state.sharding import is_dtensor, local_part, ranks_alike

if TYPE_CHECKING:
    import torch

Ranks = tuple[int, ...]


@dataclass
class HeldParameters:
    """This rank's parts of the parameters of a state."""

    nbytes: int = 0
    """Bytes of all parts."""
    sets: "dict[Ranks, dict[str, torch.Tensor]]" = field(default_factory=dict)
    """Parts that must be equal, by the ranks that hold them.

    Every rank of a set finds the same names and shapes in it. Parts of one name that differ, because they are other
    shards or other pipeline stages, are in other sets.
    """
    plain: "dict[str, torch.Tensor]" = field(default_factory=dict)
    """Trained plain tensors that other ranks may hold, too."""


def held_parameters(state: Mapping[str, Any]) -> HeldParameters:
    """Return this rank's parts of the parameters of ``state``."""
    held = HeldParameters()
    parameters = [(f"{owner}/{name}", parameter) for owner, name, parameter in named_parameters(state)]
    distributed = sys.modules.get("torch.distributed")
    is_world = distributed is not None and distributed.is_available() and distributed.is_initialized()
    wrappers = _Wrappers.find() if parameters and is_world else _Wrappers()
    may_be_replicas = distributed is not None and is_world and distributed.get_world_size() > 1
    for name, parameter in parameters:
        local, ranks = parameter, wrappers.kept_equal.get(id(parameter), ())
        if is_dtensor(parameter):
            local = local_part(parameter)[0]
            if not any(placement.is_partial() for placement in parameter.placements):
                ranks = tuple(ranks_alike(parameter))
        held.nbytes += local.nbytes
        if len(ranks) > 1 and local.numel():
            held.sets.setdefault(ranks, {})[name] = local.detach()
        elif may_be_replicas and not ranks and not wrappers.free_parameters and _is_plain(parameter):
            held.plain[name] = parameter
    return held


def _is_plain(parameter: "torch.Tensor") -> bool:
    import torch

    is_common = type(parameter) in (torch.nn.Parameter, torch.Tensor) and parameter.layout is torch.strided
    has_numbers = parameter.numel() > 0 and parameter.device.type in ("cpu", "cuda")
    return is_common and has_numbers and parameter.requires_grad


@dataclass
class _Wrappers:
    """What wrappers of modules do to parameters."""

    kept_equal: dict[int, Ranks] = field(default_factory=dict)
    """Ranks between which DistributedDataParallel keeps a parameter equal, by the parameter's id."""
    free_parameters: bool = False
    """Whether there is fully_shard, or FullyShardedDataParallel: they gather plain tensors and free their memory."""

    @classmethod
    def find(cls) -> "_Wrappers":
        """Look through all objects of the process, because people save the module and not the wrapper around it."""
        from torch.distributed import get_process_group_ranks
        from torch.nn.parallel import DistributedDataParallel

        found = cls()
        fsdp = sys.modules.get("torch.distributed.fsdp")
        sharders = () if fsdp is None else (fsdp.FSDPModule, fsdp.FullyShardedDataParallel)
        for thing in gc.get_objects():
            kind = type(thing)  # and not isinstance(): that of a proxy could have side effects
            if issubclass(kind, sharders):
                found.free_parameters = True
            elif issubclass(kind, DistributedDataParallel):
                ranks = tuple(sorted(get_process_group_ranks(thing.process_group)))
                for name, parameter in thing.module.named_parameters():
                    if name not in thing.parameters_to_ignore:
                        found.kept_equal[id(parameter)] = ranks
        return found
