"""Bytes of parameters, gradients and optimizer state on one rank under ``fully_shard``."""

from dataclasses import dataclass

from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.planning.parameters import RankParameters

MASTER_BYTES = 4
"""Bytes of an element of the sharded parameters, of reduced gradients, and of Adam's moments: all fp32."""

_COMPUTE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True)
class StateMemory:
    """The memory of the state on the device, in bytes. Each part is at its largest within a step."""

    parameters: float
    """Bytes of the fp32 shards, which the optimizer updates."""
    gradients: float
    """Bytes of the gradients: sharded, or whole if they are summed before they are reduced."""
    optimizer: float
    """Bytes of AdamW's two moments, or of SGD's momentum."""
    gathered: float
    """Bytes of parameters in the data type of the computation. At ZeRO 0, too, torch computes with a copy."""
    buffers: float
    """Bytes in flight: two all-gathers, and the gradients of one group before they are reduced."""


def compute_bytes(config: TrainerConfig) -> int:
    """Return the size of an element of parameters and activations in forward and backward passes."""
    return _COMPUTE_BYTES[config.precision.compute]


def state_memory(config: TrainerConfig, parameters: RankParameters) -> StateMemory:
    """Return the memory of one rank's state."""
    on_device = 0 if config.memory.offload == "parameters" else MASTER_BYTES
    moments_on_device = MASTER_BYTES if config.memory.offload == "none" else 0
    return StateMemory(
        parameters=on_device * parameters.sharded_elements,
        gradients=max(
            on_device * parameters.sharded_elements,
            MASTER_BYTES * _whole_gradient_elements(config, parameters) if adds_up_whole_gradients(config) else 0,
        ),
        optimizer=moments_on_device * _moments(config) * parameters.sharded_elements,
        gathered=compute_bytes(config) * _gathered_elements(config, parameters),
        buffers=_buffer_bytes(config, parameters),
    )


def adds_up_whole_gradients(config: TrainerConfig) -> bool:
    """Return whether gradients stay unsharded from one microbatch to the next.

    Under a pipeline schedule torch reduces them once a step, at every ZeRO stage.
    """
    parallel = config.parallel
    return parallel.pp > 1 or (parallel.zero <= 1 and parallel.microbatches > 1)


def _whole_gradient_elements(config: TrainerConfig, parameters: RankParameters) -> int:
    # Until the reduction, torch keeps the whole gradient of an embedding on each tp rank, as a partial sum.
    return parameters.elements + (config.parallel.tp - 1) * parameters.embedding


def state_bytes_per_parameter(config: TrainerConfig) -> int:
    """Return the bytes of a parameter and its optimizer state, which a checkpoint saves."""
    return MASTER_BYTES * (1 + _moments(config))


def _moments(config: TrainerConfig) -> int:
    if config.optimizer.name == "adamw":
        return 2
    return int(config.optimizer.momentum > 0)


def _gathered_elements(config: TrainerConfig, parameters: RankParameters) -> int:
    # Pipeline schedules leave parameters gathered after a backward pass. ZeRO 3 frees them only after forward passes.
    if config.parallel.zero < 3 or config.parallel.pp > 1:
        return parameters.elements
    return parameters.root.elements + parameters.block_elements


def _buffer_bytes(config: TrainerConfig, parameters: RankParameters) -> float:
    element = compute_bytes(config)
    largest_group = max(parameters.block_elements, parameters.root.elements)
    gathers = 0 if config.parallel.zero == 0 else element * (largest_group + parameters.block_elements)
    return gathers + (element + MASTER_BYTES) * largest_group
