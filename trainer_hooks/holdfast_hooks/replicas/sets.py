"""Finds the parameters, or parts of them, that several ranks must hold alike.

Only two kinds are certain: parameters that ``DistributedDataParallel`` keeps equal, and DTensors along the axes of
their mesh on which they are replicated. Any other plain tensor may be one rank's own.
"""

import gc
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from holdfast_hooks.state.counterparts import parameters_of
from holdfast_hooks.state.sharding import is_dtensor, local_part, ranks_alike

if TYPE_CHECKING:
    import torch

Ranks = tuple[int, ...]


def replica_sets(state: Mapping[str, Any]) -> "dict[Ranks, dict[str, torch.Tensor]]":
    """Return this rank's parts of the parameters of ``state``, by the ranks that hold the same parts.

    Every rank of a set finds the same names and shapes in it. Parts of one name that differ, because they are other
    shards or other pipeline stages, are in other sets.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return {}
    kept_equal = _kept_equal_by_ddp()
    sets: dict[Ranks, dict[str, torch.Tensor]] = {}
    for name, parameter in _parameters(state):
        local, ranks = parameter, kept_equal.get(id(parameter), ())
        if is_dtensor(parameter) and not any(placement.is_partial() for placement in parameter.placements):
            local, ranks = local_part(parameter)[0], tuple(ranks_alike(parameter))
        if len(ranks) > 1 and local.numel():
            sets.setdefault(ranks, {})[name] = local.detach()
    return sets


def _parameters(state: Mapping[str, Any]) -> "Iterator[tuple[str, torch.Tensor]]":
    """Yield each parameter once, under its name in a module, else in an optimizer."""
    seen: set[int] = set()
    of_modules = {name: value.named_parameters() for name, value in state.items() if hasattr(value, "named_parameters")}
    of_optimizers = {name: parameters_of(value).items() for name, value in state.items()}
    for owners in (of_modules, of_optimizers):
        for owner, parameters in owners.items():
            for name, parameter in parameters:
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield f"{owner}/{name}", parameter


def _kept_equal_by_ddp() -> dict[int, Ranks]:
    """Return the ranks between which DistributedDataParallel keeps a parameter equal, by the parameter's id.

    It looks through all objects of the process, because people save the module and not the wrapper around it.
    """
    from torch.distributed import get_process_group_ranks
    from torch.nn.parallel import DistributedDataParallel

    found: dict[int, Ranks] = {}
    # Ask the type and not the object: an isinstance() of a proxy could have side effects.
    for wrapper in [thing for thing in gc.get_objects() if issubclass(type(thing), DistributedDataParallel)]:
        ranks = tuple(sorted(get_process_group_ranks(wrapper.process_group)))
        for name, parameter in wrapper.module.named_parameters():
            if name not in wrapper.parameters_to_ignore:
                found[id(parameter)] = ranks
    return found
