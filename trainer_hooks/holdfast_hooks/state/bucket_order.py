"""Brings back the order in which DistributedDataParallel sums gradients, so that a restored run rounds alike.

In its second forward pass, the wrapper sorts the parameters into new buckets: in the order in which the first backward
pass made their gradients ready. With three ranks or more, the place in a bucket decides in which order the ranks are
added. A restored process has not trained yet, so its first step would add in the order of new wrappers. Before it loads
its state, it therefore sums gradients of zero once, in the saved order, and the wrapper learns its buckets from that.
"""

import gc
import logging
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from holdfast_hooks.state.counterparts import named_parameters
from holdfast_hooks.state.encoding import Stateful

if TYPE_CHECKING:
    import torch
    from torch.nn.parallel import DistributedDataParallel

KEY = "bucket_orders"
"""Key of the orders, next to the random states of a snapshot."""

_LEAST_RANKS = 3
"""Fewest ranks whose sum depends on an order: two numbers have the same sum both ways."""
_BUCKETS = "rebuilt_per_bucket_param_indices"
"""Name of the numbers of the parameters in what torch logs about a wrapper, from the second forward pass on."""
_log = logging.getLogger("holdfast_hooks")


def wrappers() -> "list[DistributedDataParallel]":
    """Return the wrappers of this process, by a look through all its objects: people give the module and not them."""
    from torch.nn.parallel import DistributedDataParallel

    return [thing for thing in gc.get_objects() if issubclass(type(thing), DistributedDataParallel)]


def ordered_wrappers(state: Mapping[str, Stateful]) -> "dict[str, DistributedDataParallel]":
    """Return the wrappers around ``state`` whose buckets change, each by the name of its first trained parameter."""
    torch = sys.modules.get("torch")
    if torch is None or not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return {}
    if torch.distributed.get_world_size() < _LEAST_RANKS:
        return {}
    names = {id(parameter): f"{owner}/{name}" for owner, name, parameter in named_parameters(state)}
    found = {}
    for wrapper in wrappers():
        first = next(iter(_trained(wrapper)), None)
        has_order = wrapper.process_group.size() >= _LEAST_RANKS and not wrapper.find_unused_parameters
        if has_order and id(first) in names:
            found[names[id(first)]] = wrapper
    return dict(sorted(found.items()))


def capture(ordered: "Mapping[str, DistributedDataParallel]") -> dict[str, str]:
    """Return the numbers of the parameters of each wrapper, in the order of its buckets (training thread)."""
    return {name: order for name, wrapper in ordered.items() if (order := _order_of(wrapper))}


def restore(
    orders: object, state: Mapping[str, Stateful], all_say: "Callable[[bool, torch.distributed.ProcessGroup], bool]"
) -> None:
    """Have each wrapper learn its buckets from the order that :func:`capture` returned; all ranks call it.

    Hooks of the script on gradients see the zeros, so load the state afterwards. One line in the log names a wrapper
    that cannot learn.

    Args:
        all_say: returns whether all ranks of a group say yes.
    """
    for name, wrapper in ordered_wrappers(state).items():
        if _order_of(wrapper):
            continue  # the script has warmed it up, as it did when the run began
        saved = orders.get(name) if isinstance(orders, dict) else None
        parameters = _in_order(wrapper, saved)
        if all_say(bool(parameters), wrapper.process_group):
            _sum_zeros(wrapper, parameters)
        elif wrapper.process_group.rank() == 0:
            _log.warning(
                "the first restored step may round otherwise than an undisturbed one: DistributedDataParallel around %s"
                " cannot learn its buckets before it; this needs a snapshot of this version, and no static_graph=True,"
                " mixed_precision, communication hook or sparse gradients",
                name,
            )


def has_stateful_hook() -> bool:
    """Return whether a wrapper of this process has a communication hook with a state of its own, such as PowerSGD's."""
    from torch.distributed import ProcessGroup

    hooks = (hook for wrapper in wrappers() for hook in getattr(wrapper, "_comm_hooks", ()))
    return any(state is not None and not isinstance(state, ProcessGroup) for _, state in hooks)


def _order_of(wrapper: "DistributedDataParallel") -> str:
    """Return the order of a wrapper's buckets, or the one that they will have; empty before its first backward pass."""
    logged: Callable[[], dict[str, object]] = getattr(wrapper, "_get_ddp_logging_data", dict)
    if _BUCKETS not in logged() and wrapper.logger is not None:
        wrapper.logger.set_runtime_stats_and_log()  # as every one of the first forward passes begins
    data = logged()
    return str(data.get(_BUCKETS) or data.get("prev_iteration_grad_ready_order_indices", "")).replace(",", "")


def _trained(wrapper: "DistributedDataParallel") -> "list[torch.Tensor]":
    """Return the parameters that a wrapper reduces, by the numbers that it gives them."""
    ignored = wrapper.parameters_to_ignore
    return [one for name, one in wrapper.module.named_parameters() if one.requires_grad and name not in ignored]


def _in_order(wrapper: "DistributedDataParallel", saved: object) -> "list[torch.Tensor]":
    """Return a wrapper's parameters in a saved order; none if that does not fit, or a pass of zeros is no real one."""
    trained = _trained(wrapper)
    is_sparse = any(getattr(module, "sparse", False) for module in wrapper.module.modules())
    # A hook on the communication may count its calls, or divide by a norm.
    has_hook = bool(getattr(wrapper, "_comm_hooks", ()))
    is_other = wrapper.static_graph or wrapper.mixed_precision is not None or is_sparse or has_hook
    if is_other or not isinstance(saved, str):
        return []
    numbers = [int(word) if word.isdecimal() else -1 for word in saved.split()]
    return [trained[number] for number in numbers] if sorted(numbers) == list(range(len(trained))) else []


def _sum_zeros(wrapper: "DistributedDataParallel", parameters: "list[torch.Tensor]") -> None:
    import torch

    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    wrapper.reducer.prepare_for_forward()
    wrapper.reducer.prepare_for_backward([])
    for parameter in parameters:
        torch.autograd.backward([parameter], [torch.zeros_like(parameter)])
    for parameter, gradient in zip(parameters, before, strict=True):
        parameter.grad = gradient
