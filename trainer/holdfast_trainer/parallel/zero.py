"""ZeRO stages 0 to 3 as ``fully_shard`` and its setters (Rajbhandari et al., "ZeRO", 2020).

=====  ==================================================  =====================  ===================
stage  sharded                                             parameters gathered    gradients reduced
=====  ==================================================  =====================  ===================
0      nothing (``fully_shard`` over one rank, replicated)  never                  once a step
1      optimizer state                                      once a step            once a step
2      and gradients                                        once a step            every microbatch
3      and parameters                                       every pass             every microbatch
=====  ==================================================  =====================  ===================

torch's pipeline schedules set the same flags themselves. At every ZeRO stage they reduce gradients once a step, and
they keep parameters gathered from a backward pass to the next forward pass. They do not touch the flag for what happens
after a forward pass, so stage 3 still frees the parameters there. Zero-bubble is the exception: between its passes it
looks for the gathered parameters, and if they were freed it would lose their gradients.
"""

from functools import partial

from torch.distributed.fsdp import FSDPModule, fully_shard

from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.config_sections import ParallelConfig
from holdfast_trainer.model.transformer import Transformer
from holdfast_trainer.parallel.mesh import Mesh
from holdfast_trainer.parallel.offload import offload_policy
from holdfast_trainer.precision.compute_dtype import mixed_precision_policy


def apply_fully_sharded(model: Transformer, config: TrainerConfig, mesh: Mesh) -> None:
    """Apply ``fully_shard`` over the data-parallel ranks to each block, and then to the rest of the model.

    Gradients are summed, not averaged: the loss is already divided by the tokens of the global batch.
    """
    shard = partial(
        fully_shard,
        reshard_after_forward=_frees_after_forward(config.parallel),
        offload_policy=offload_policy(config.memory),
    )
    # Each block is a unit of its own, so that stage 3 can gather the parameters block by block. The call on the whole
    # model comes last: it takes what no unit has, such as the embedding and the head.
    inner = mixed_precision_policy(config.precision)
    outer = mixed_precision_policy(config.precision, returns_logits=model.head is not None)
    for block in model.layers.values():
        if mesh.experts is not None:
            # Expert-parallel ranks hold different experts, so fewer ranks share the state of each of them.
            shard(block.get_submodule("feed_forward.experts"), mesh=mesh.fully_sharded_experts, mp_policy=inner)
        shard(block, mesh=mesh.fully_sharded, mp_policy=inner)
    shard(model, mesh=mesh.fully_sharded, mp_policy=outer)
    for module in sharded_modules(model):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)  # gloo cannot scale while it reduces.


def _frees_after_forward(config: ParallelConfig) -> bool:
    """Return whether a forward pass ends by freeing the gathered parameters: see the head of this file."""
    splits_backward = config.pp > 1 and config.schedule == "zero-bubble"
    return config.zero == 3 and not splits_backward


def prepare_backward(model: FSDPModule, *, zero: int, last: bool) -> None:
    """Tell FSDP what the next backward pass does with gradients and parameters. ``last``: of the step."""
    model.set_is_last_backward(last)
    # Below stage 3, parameters stay gathered for the next microbatch. The last pass frees them, because the optimizer
    # then changes the shards.
    model.set_reshard_after_backward(zero == 3 or last)
    if zero >= 2:
        # Each microbatch reduces gradients to their shards, where they add up. Copies of a shard (HSDP) exchange the
        # sum once, after the last microbatch.
        model.set_requires_all_reduce(last)
    else:
        # Whole gradients add up on each rank until the last microbatch reduces them.
        model.set_requires_gradient_sync(last)


def free_gathered_parameters(model: Transformer) -> None:
    """Free the gathered parameters, as a backward pass would do. For a forward pass without one."""
    for module in sharded_modules(model):
        module.reshard()


def sharded_modules(model: Transformer) -> list[FSDPModule]:
    """Return the modules of ``model`` to which ``fully_shard`` was applied."""
    return [module for module in model.modules() if isinstance(module, FSDPModule)]
