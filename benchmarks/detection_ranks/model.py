"""A model with two layers per pipeline stage. The ranks of a stage's data axis hold equal weights."""

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate

from .groups import Groups

DIM = 16
LAYERS = 2
BATCH = 8
_RATE = 1e-3


class Layer(nn.Module):
    """A layer that multiplies, sums over the tensor axis and exchanges over the expert axis."""

    def __init__(self, groups: Groups, seed: int) -> None:
        super().__init__()
        self._groups = groups
        self._seed = seed
        weight = torch.empty(DIM, DIM)
        if groups.sizes["dp"] > 1:
            # A replicated DTensor shows the hooks that other ranks must hold the same weight.
            weight = DTensor.from_local(weight, groups.mesh["dp"], [Replicate()], run_check=False)
        self.weight = nn.Parameter(weight)
        self.reset()

    @property
    def local(self) -> torch.Tensor:
        """The weight as a plain tensor."""
        return self.weight.to_local() if isinstance(self.weight, DTensor) else self.weight

    @property
    def gradient(self) -> torch.Tensor:
        """The weight's gradient as a plain tensor."""
        gradient = self.weight.grad
        assert gradient is not None
        return gradient.to_local() if isinstance(gradient, DTensor) else gradient

    @torch.no_grad()
    def reset(self) -> None:
        """Set the weight to its first values."""
        self.local.copy_(torch.randn(DIM, DIM, generator=torch.Generator().manual_seed(self._seed)) / DIM**0.5)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the layer's output. Gradients bypass what other ranks add."""
        own = torch.tanh(inputs @ self.local)
        summed = self._groups.all_reduce("tp", own.detach() / self._groups.sizes["tp"])
        exchanged = self._groups.all_to_all("ep", summed)
        return own + (exchanged - own).detach()


class Stage(nn.Module):
    """The layers of one pipeline stage."""

    def __init__(self, groups: Groups) -> None:
        super().__init__()
        place = 1000 * groups.index["pp"] + 10 * groups.index["tp"] + 100 * groups.index["ep"]
        self.layers = nn.ModuleList(Layer(groups, place + number) for number in range(LAYERS))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the output of the last layer."""
        for layer in self.layers:
            inputs = layer(inputs)
        return inputs

    def own_layers(self) -> list[Layer]:
        """Return the layers with their type."""
        return [layer for layer in self.layers if isinstance(layer, Layer)]

    @torch.no_grad()
    def descend(self) -> None:
        """Take one step of gradient descent."""
        for layer in self.own_layers():
            layer.local.sub_(_RATE * layer.gradient)
