"""Checks what a configuration names on this machine: data, weights and GPUs.

`holdfast run` does so before it starts a rank.
"""

from pathlib import Path

from holdfast_hooks import ConfigurationError
from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.data.recipe import Recipe
from holdfast_trainer.weights.weight_folder import find_weights

# The drivers of NVIDIA, of AMD, of WSL, and of NVIDIA's boards.
_GPU_FILES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/kfd", "/dev/dxg", "/dev/nvhost-ctrl", "/dev/nvmap")


def expect_usable_here(config: TrainerConfig) -> None:
    """Raise ConfigurationError, which names the path or the setting, if a rank on this machine would refuse to start.

    Reads no file to its end, prepares no corpus, and loads no weights.
    """
    Recipe.find(config.data, vocabulary=config.model.vocabulary)
    if config.model.init_from:
        find_weights(config.model.weights_folder, config.model)
    is_cuda = config.distributed.device == "cuda"
    if not (is_cuda or config.precision.fp8) or has_gpu():
        return
    if is_cuda:
        raise ConfigurationError(
            'distributed.device is cuda, but this machine has no CUDA device: set distributed.device = "cpu"'
        )
    raise ConfigurationError("precision.fp8 needs a GPU, but this machine has none: unset precision.fp8")


def has_gpu() -> bool:
    """Return whether this machine has a GPU, or may have one. torch, which takes a second to import, decides on no."""
    if any(Path(file).exists() for file in _GPU_FILES):
        return True
    # device_count() asks NVML first. It initializes the CUDA driver in this process only where NVML cannot tell.
    import torch

    return torch.cuda.device_count() > 0
