"""From a configuration to this rank's part of the model, read top to bottom."""

import torch
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import Placement, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.mesh import Mesh
from holdfast_trainer.model import Transformer


def parallelize(config: TrainerConfig, mesh: Mesh, device: torch.device) -> Transformer:
    """Return this rank's part of the model, initialised, on ``device``. All ranks must call it.

    Pipeline first, then tensor parallelism within the stage, then sharding of what is left over dp; weights
    come into being only once each rank knows which part of them is its own.
    """
    with torch.device("meta"):
        model = Transformer(
            config.model,
            sequence=config.data.sequence,
            layers=stage_layers(config.model.layers, stages=mesh.size("pp"), stage=mesh.index("pp")),
            first=mesh.is_first_stage,
            last=mesh.is_last_stage,
        )
    if mesh.size("tp") > 1:
        apply_tensor_parallel(model, mesh, sequence_parallel=config.parallel.sequence_parallel)
    apply_fully_sharded(model, mesh)
    model.initialise(device, seed=config.train.seed)
    return model


def stage_layers(layers: int, *, stages: int, stage: int) -> range:
    """Return the blocks of a stage: as even as can be, earlier stages first to take one more."""
    each, left_over = divmod(layers, stages)
    start = stage * each + min(stage, left_over)
    return range(start, start + each + (stage < left_over))


def apply_tensor_parallel(model: Transformer, mesh: Mesh, *, sequence_parallel: bool) -> None:
    """Cut attention heads, hidden units and the vocabulary over tp.

    The residual stream between them is cut along the sequence, or on every rank whole without
    ``sequence_parallel`` (Korthikanti et al., "Reducing Activation Recomputation in Large Transformer
    Models", 2022).
    """
    stream: Placement = Shard(1) if sequence_parallel else Replicate()
    whole = Replicate()
    plan: dict[str, ParallelStyle] = {
        # The second input is the table of rotations, which every rank has.
        "layers.*.attention": PrepareModuleInput(input_layouts=(stream, None), desired_input_layouts=(whole, None)),
        "layers.*.attention.query": ColwiseParallel(),
        "layers.*.attention.key": ColwiseParallel(),
        "layers.*.attention.value": ColwiseParallel(),
        "layers.*.attention.output": RowwiseParallel(output_layouts=stream),
        "layers.*.feed_forward": PrepareModuleInput(input_layouts=(stream,), desired_input_layouts=(whole,)),
        "layers.*.feed_forward.gate": ColwiseParallel(),
        "layers.*.feed_forward.up": ColwiseParallel(),
        "layers.*.feed_forward.output": RowwiseParallel(output_layouts=stream),
    }
    if model.embedding is not None:
        plan["embedding"] = RowwiseParallel(input_layouts=whole, output_layouts=stream)
    if model.head is not None:
        plan["head"] = ColwiseParallel(input_layouts=stream, output_layouts=whole)
    if sequence_parallel:
        plan |= {"layers.*.attention_norm": SequenceParallel(), "layers.*.feed_forward_norm": SequenceParallel()}
        if model.norm is not None:
            plan["norm"] = SequenceParallel()
    # No rank is the source of the weights: each fills in its own part later.
    parallelize_module(model, mesh.axis("tp"), plan, src_data_rank=None)
    model.tie()


def apply_fully_sharded(model: Transformer, mesh: Mesh) -> None:
    """Shard parameters, gradients and optimizer state over dp, block by block (ZeRO stage 3).

    Gradients are summed, not averaged: the loss is already divided by the tokens of the global batch.
    """
    for block in model.layers.values():
        fully_shard(block, mesh=mesh.axis("dp"), reshard_after_forward=True)
    fully_shard(model, mesh=mesh.axis("dp"), reshard_after_forward=True)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo cannot scale while it reduces
