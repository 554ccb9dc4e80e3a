"""Activation checkpointing and compilation, block by block.

Both replace the ``forward`` of a block and do not wrap a module, so that the names of parameters do not change.
Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016.
"""

import logging
from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from holdfast_trainer.config_sections import MemoryConfig
from holdfast_trainer.moe.experts import Experts

_logger = logging.getLogger("holdfast_trainer")

SAVED_PRODUCTS = (
    "mm",
    "bmm",
    "addmm",
    "_scaled_mm",
    "_grouped_mm",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
)
"""Operators of ``torch.ops.aten`` whose results selective checkpointing saves."""

# All-gathers are left out: sequence parallelism saves memory by not keeping their outputs.
SAVED_COLLECTIVES = ("all_reduce", "reduce_scatter_tensor")
"""The same of ``torch.ops._c10d_functional``."""


def saved_operations(products: object, collectives: object) -> frozenset[object]:
    """Return the operators to save, of both namespaces. Where torch has renamed one, its result is computed again."""
    wanted = [(products, name) for name in SAVED_PRODUCTS] + [(collectives, name) for name in SAVED_COLLECTIVES]
    if missing := [name for operators, name in wanted if not hasattr(operators, name)]:
        _logger.warning(
            "torch %s has no %s: selective checkpointing computes these again and does not save them",
            torch.__version__,
            ", ".join(missing),
        )
    return frozenset(getattr(operators, name) for operators, name in wanted if hasattr(operators, name))


_SAVED_OPERATIONS = saved_operations(torch.ops.aten, torch.ops._c10d_functional)


def apply_to_blocks(blocks: Iterable[nn.Module], config: MemoryConfig, *, whole_graphs: bool = True) -> None:
    """Apply activation checkpointing and compilation to each block, as ``config`` says.

    Call it after tensor parallelism and before ``fully_shard``, whose hooks then stay outside of both. With
    ``whole_graphs``, a block that does not compile to one graph raises an error at its first forward pass.
    """
    for block in blocks:
        if config.checkpointing == "full":
            _checkpoint(block)
        elif config.checkpointing == "selective":
            for module in _selective_regions(block):
                _checkpoint(module, context_fn=_save_products)
        if config.compile:
            block.forward = torch.compile(block.forward, fullgraph=whole_graphs)


def _selective_regions(block: nn.Module) -> list[nn.Module]:
    """Return the block, or its attention and its experts if it has experts.

    Experts may be sharded on their own, and then have hooks of FSDP. Hooks within a region would run other operations
    in the second pass, but the saved results are found by the order of the operations.
    """
    experts = [module for module in block.modules() if isinstance(module, Experts)]
    return [block.get_submodule("attention"), *experts] if experts else [block]


def _checkpoint(module: nn.Module, **options: Any) -> None:
    module.forward = partial(checkpoint, module.forward, use_reentrant=False, **options)


def _save_products() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Return the contexts of the first and of the second forward pass."""
    first, second = create_selective_checkpoint_contexts(_policy)  # type: ignore[no-untyped-call]
    return first, second


def _policy(_context: object, operation: object, *_: object, **__: object) -> CheckpointPolicy:
    saved = getattr(operation, "overloadpacket", None) in _SAVED_OPERATIONS
    return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE
