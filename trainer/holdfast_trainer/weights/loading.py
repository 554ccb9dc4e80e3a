"""Fills the parameters of a rank with weights from files. Each rank reads its own parts of the tensors, and no more."""

from collections.abc import Mapping

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from holdfast_hooks.state.sharding import local_part
from holdfast_trainer.model.parts import ModelParts
from holdfast_trainer.weights.weight_folder import StoredWeight, opened


@torch.no_grad()
def load_weights(parts: ModelParts, stored: Mapping[str, StoredWeight]) -> None:
    """Copy the ``stored`` tensors, by the names of our parameters, into this rank's parts of the model.

    Values become the type of the parameter. Raises ConfigurationError, which names the file, if one cannot be read.
    """
    in_file: dict[StoredWeight, list[nn.Parameter]] = {}
    for name, parameter in parts.named_parameters():
        in_file.setdefault(stored[name], []).append(parameter)
    for path in sorted({weight.path for weight in in_file}):
        with opened(path, "pt") as file:
            for weight, parameters in in_file.items():
                if weight.path == path:
                    for parameter in parameters:
                        _read(file.get_slice(weight.name), parameter)


def _read(tensor: object, parameter: nn.Parameter) -> None:
    """Copy this rank's part of a tensor in a file. ``tensor`` is a slice of safetensors: it reads what it is asked."""
    if isinstance(parameter, DTensor):
        local, _, start = local_part(parameter)
    else:
        local, start = parameter.detach(), (0,) * parameter.ndim
    if local.numel():
        region = tuple(slice(first, first + length) for first, length in zip(start, local.shape, strict=True))
        local.copy_(tensor[region])  # type: ignore[index]
