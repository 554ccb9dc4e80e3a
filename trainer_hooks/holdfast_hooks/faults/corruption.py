"""Faults of numbers: training continues and computes something wrong."""

import random
from typing import TYPE_CHECKING

from holdfast_hooks.faults.fault import Fault, Site
from holdfast_hooks.state.sharding import is_dtensor

if TYPE_CHECKING:
    import torch
    from torch.utils.hooks import RemovableHandle


class NanGradient:
    """Puts one NaN into the gradient at the output of a module, so before any sum over ranks.

    ``seed`` selects the module. It strikes once, in the next backward pass.
    """

    def __init__(self, fault: Fault, site: Site) -> None:
        modules = [module for module in site.modules() if _learns(module)]
        module = random.Random(fault.seed).choice(modules)
        self._forward_hook: RemovableHandle = module.register_forward_hook(self._output)
        self._done = False

    def moment(self, step: int, phase: int) -> bool:  # noqa: ARG002 - the protocol of effects
        """Return True once there is a NaN."""
        if self._done:
            self.end()
        return self._done

    def end(self) -> None:
        """Harm no later pass, and no pass whose forward half is over."""
        self._done = True
        self._forward_hook.remove()

    def _output(self, _: "torch.nn.Module", __: object, output: object) -> None:
        import torch

        # Inside of the module's own backward hooks, so that they see this module make the NaN.
        first = output[0] if isinstance(output, (tuple, list)) and output else output
        if isinstance(first, torch.Tensor) and first.requires_grad and not self._done:
            first.register_hook(self._poison)  # type: ignore[no-untyped-call]

    def _poison(self, gradient: "torch.Tensor") -> "torch.Tensor | None":
        if self._done:
            return None
        self._done = True
        poisoned = gradient.clone()
        local(poisoned).view(-1)[0] = float("nan")
        return poisoned


def flip_bit(fault: Fault, site: Site) -> None:
    """Flip one bit of one element of one weight, as this rank holds it. ``seed`` selects all three.

    If other ranks hold some of the weights, too, it flips one of those: Holdfast can see no other.
    """
    import torch

    whole_number = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    own = (parameter for module in site.modules() for parameter in module.parameters(recurse=False))
    compared = [weight.detach() for weight in site.compared() or () if can_flip(weight)]
    weights = compared or [weight for parameter in own if can_flip(weight := local(parameter.detach()))]
    chance = random.Random(fault.seed)
    weight = chance.choice(weights)
    bits = weight.view(whole_number[weight.element_size()])
    place = tuple(chance.randrange(length) for length in weight.shape)
    bit = chance.randrange(8 * weight.element_size())
    top = 8 * weight.element_size() - 1
    # The top bit of a signed number has a negative value.
    mask = -(1 << bit) if bit == top and bits.dtype is not torch.uint8 else 1 << bit
    bits[place] ^= mask


def can_flip(weight: "torch.Tensor") -> bool:
    """Return whether a bit of this tensor can be flipped."""
    return weight.numel() > 0 and weight.is_floating_point()


def local(tensor: "torch.Tensor") -> "torch.Tensor":
    """Return this rank's part, which shares the memory."""
    import torch

    if not is_dtensor(tensor):
        return tensor
    with torch.no_grad():
        return tensor.to_local()


def _learns(module: "torch.nn.Module") -> bool:
    return any(parameter.requires_grad for parameter in module.parameters(recurse=False))
