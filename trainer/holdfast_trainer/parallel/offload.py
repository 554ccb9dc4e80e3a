"""State in host memory instead of device memory."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy
from torch.optim import Optimizer

from holdfast_trainer.config_sections import MemoryConfig
from holdfast_trainer.precision.skipped_step import SkipsOnHost

_HOST = torch.device("cpu")


def offload_policy(config: MemoryConfig) -> OffloadPolicy:
    """Return the policy for ``fully_shard``: with memory.offload "parameters", all sharded state is on the host."""
    if config.offload != "parameters":
        return OffloadPolicy()
    # Copies from pinned memory run while the GPU computes. Without CUDA, memory cannot be pinned.
    return CPUOffloadPolicy(pin_memory=torch.cuda.is_available())


def state_device(config: MemoryConfig, device: torch.device) -> torch.device:
    """Return the device of the sharded parameters and their gradients, for a model that computes on ``device``."""
    return _HOST if config.offload == "parameters" else device


def move_buffers(model: nn.Module, device: torch.device) -> None:
    """Move the buffers, which are not sharded, to the device on which the model computes."""
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(device))


class HostOptimizer(SkipsOnHost, Optimizer):
    """An optimizer whose state and fp32 master weights are on the host, where it steps (memory.offload "optimizer").

    Ren et al., "ZeRO-Offload: Democratizing Billion-Scale Model Training", 2021. Callers see an optimizer of the
    device's parameters, with their groups and learning rates. Only the tensors in its state are on the host.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        """Take over a new ``optimizer`` of the device's parameters."""
        super().__init__([dict(group) for group in optimizer.param_groups], optimizer.defaults)
        self._inner = optimizer
        for group in optimizer.param_groups:
            group["params"] = [nn.Parameter(_to_host(parameter)) for parameter in group["params"]]
        self._pairs = list(zip(_parameters(self), _parameters(optimizer), strict=True))
        self._masters_are_stale = True

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Copy the gradients to the host, step there, and copy back the new parameters of those with a gradient."""
        assert closure is None, "the gradients are computed before the step"
        if self._masters_are_stale:
            self._copy_masters()
        if self.skips():
            return
        for parameter, master in self._pairs:
            master.grad = None if parameter.grad is None else _to_host(parameter.grad)
        _wait_for_copies()
        self._copy_settings(self, self._inner)
        self._inner.step()
        for parameter, master in self._pairs:
            if master.grad is not None:
                parameter.copy_(master, non_blocking=True)
                self.state[parameter] = self._inner.state[master]
        self._inner.zero_grad()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state that :meth:`state_dict` returned. The next step copies the parameters to the masters first."""
        self._inner.load_state_dict(state_dict)
        self._copy_settings(self._inner, self)
        for parameter, master in self._pairs:
            self.state[parameter] = self._inner.state[master]
        self._masters_are_stale = True

    def _copy_masters(self) -> None:
        for parameter, master in self._pairs:
            master.copy_(parameter)
        self._masters_are_stale = False

    @staticmethod
    def _copy_settings(source: Optimizer, target: Optimizer) -> None:
        for source_group, target_group in zip(source.param_groups, target.param_groups, strict=True):
            target_group.update({key: value for key, value in source_group.items() if key != "params"})


def offload_optimizer(optimizer: Optimizer, config: MemoryConfig) -> Optimizer:
    """Return ``optimizer``, or with memory.offload "optimizer" one that keeps its state on the host."""
    return HostOptimizer(optimizer) if config.offload == "optimizer" else optimizer


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _to_host(tensor: Tensor) -> Tensor:
    """Return a copy on the host, pinned if it comes from a GPU. It is complete only after :func:`_wait_for_copies`."""
    return tensor.detach().to(_HOST, copy=True, non_blocking=True)


def _wait_for_copies() -> None:
    if torch.cuda.is_available():
        torch.cuda.current_stream().synchronize()
