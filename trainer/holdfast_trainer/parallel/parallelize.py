"""Builds this rank's parts of the model from a configuration. Read it from top to bottom."""

from collections.abc import Mapping

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from holdfast_hooks.state.sharding import local_part
from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.config_sections import ParallelConfig
from holdfast_trainer.model.parts import ModelParts
from holdfast_trainer.model.stages import Stage, held_stages
from holdfast_trainer.model.transformer import Transformer
from holdfast_trainer.parallel.activation_checkpointing import apply_to_blocks
from holdfast_trainer.parallel.context_parallel import apply_context_parallel, zigzag_positions
from holdfast_trainer.parallel.expert_parallel import apply_expert_parallel
from holdfast_trainer.parallel.mesh import Mesh
from holdfast_trainer.parallel.offload import move_buffers, state_device
from holdfast_trainer.parallel.zero import apply_fully_sharded
from holdfast_trainer.precision.fp8 import convert_to_fp8, require_fp8
from holdfast_trainer.weights.weight_folder import StoredWeight, find_weights, opened


def parallelize(config: TrainerConfig, mesh: Mesh, device: torch.device) -> ModelParts:
    """Return this rank's parts of the model, initialised, on ``device``. All ranks must call it."""
    stages = held_stages(config, mesh.index("pp"))
    parts = ModelParts(stages, tuple(make_part(config, mesh, stage, device) for stage in stages))
    initialise(parts, config, device)
    return parts


def make_part(config: TrainerConfig, mesh: Mesh, stage: Stage, device: torch.device) -> Transformer:
    """Return one pipeline stage that will compute on ``device``, without memory for its weights.

    The pipeline comes first, then tensor parallelism within the stage, then sharding of the rest over dp and cp. The
    weights are allocated last, when each rank knows which part of them is its own.
    """
    positions = zigzag_positions(config.data.sequence, config.parallel.cp, mesh.index("cp"))
    with torch.device("meta"):
        model = Transformer(
            config.model, positions=positions, layers=stage.layers, first=stage.is_first, last=stage.is_last
        )
    if config.precision.fp8:
        require_fp8(device)
        convert_to_fp8(model.layers, tp=mesh.size("tp"))
    if mesh.size("tp") > 1:
        apply_tensor_parallel(model, mesh, config.parallel)
    if config.model.experts:
        apply_expert_parallel(model, mesh)
    if mesh.size("cp") > 1:
        apply_context_parallel(model, mesh)
    # Compiled graphs break at experts, and at attention over several ranks.
    whole_graphs = not config.model.experts and mesh.size("cp") == 1
    apply_to_blocks(model.layers.values(), config.memory, whole_graphs=whole_graphs)
    apply_fully_sharded(model, config, mesh)
    return model


def initialise(parts: ModelParts, config: TrainerConfig, device: torch.device) -> None:
    """Allocate the weights of ``parts`` and fill them from the seed, or from the files of ``model.init_from``."""
    for module in parts.modules:
        if config.model.init_from:
            module.allocate(state_device(config.memory, device))
        else:
            module.initialise(state_device(config.memory, device), seed=config.train.seed)
        move_buffers(module, device)
    if config.model.init_from:
        load_weights(parts, find_weights(config.model.weights_folder, config.model))


def apply_tensor_parallel(model: Transformer, mesh: Mesh, config: ParallelConfig) -> None:
    """Shard attention heads, hidden units and the vocabulary over tp.

    The residual stream between them is sharded along the sequence, or whole on every rank without
    ``sequence_parallel`` (Korthikanti et al., "Reducing Activation Recomputation in Large Transformer
    Models", 2022).
    """
    stream: Placement = Shard(1) if config.sequence_parallel else Replicate()
    whole = Replicate()
    logits: Placement = Shard(-1) if config.loss_parallel else whole
    plan: dict[str, ParallelStyle] = {
        # The other inputs are the table of rotations and the mask, which every rank has.
        "layers.*.attention": PrepareModuleInput(
            input_layouts=(stream, None, None), desired_input_layouts=(whole, None, None)
        ),
        "layers.*.attention.query": ColwiseParallel(),
        "layers.*.attention.key": ColwiseParallel(),
        "layers.*.attention.value": ColwiseParallel(),
        "layers.*.attention.output": RowwiseParallel(output_layouts=stream),
    }
    if not model.config.experts:
        plan |= {
            "layers.*.feed_forward": PrepareModuleInput(input_layouts=(stream,), desired_input_layouts=(whole,)),
            "layers.*.feed_forward.gate": ColwiseParallel(),
            "layers.*.feed_forward.up": ColwiseParallel(),
            "layers.*.feed_forward.output": RowwiseParallel(output_layouts=stream),
        }
    if model.embedding is not None:
        plan["embedding"] = RowwiseParallel(input_layouts=whole, output_layouts=stream)
    if model.head is not None:
        plan["head"] = ColwiseParallel(input_layouts=stream, output_layouts=logits)
    if config.sequence_parallel:
        plan |= {"layers.*.attention_norm": SequenceParallel(), "layers.*.feed_forward_norm": SequenceParallel()}
        if model.norm is not None:
            plan["norm"] = SequenceParallel()
    # No rank sends the weights to the others: each rank fills in its own part later.
    parallelize_module(model, mesh.axis("tp"), plan, src_data_rank=None)
    model.tie()


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
