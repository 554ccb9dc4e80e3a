"""One process as a whole world, with a model that is small enough for a test."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.optim import AdamW, Optimizer

from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.config_sections import ModelConfig
from holdfast_trainer.model.transformer import Transformer
from holdfast_trainer.parallel.activation_checkpointing import apply_to_blocks
from holdfast_trainer.parallel.offload import offload_policy
from holdfast_trainer.precision.compute_dtype import mixed_precision_policy

CPU = torch.device("cpu")
MODEL: dict[str, Any] = {"dim": 32, "layers": 2, "heads": 2, "kv_heads": 1, "hidden": 48}
SEQUENCE = 16


@contextmanager
def world_of_one() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more threads would wait for each other longer than these models compute
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
        torch.set_num_threads(threads)


def small_config(**sections: Any) -> TrainerConfig:
    return TrainerConfig(**{"model": MODEL, "data": {"sequence": SEQUENCE}, **sections})


def whole_model(config: ModelConfig, sequence: int = SEQUENCE) -> Transformer:
    positions = torch.arange(sequence, device=CPU)
    return Transformer(config, positions=positions, layers=range(config.layers), first=True, last=True)


def meta_model(config: TrainerConfig) -> Transformer:
    with torch.device("meta"):
        return whole_model(config.model)


def small_model(config: TrainerConfig) -> Transformer:
    """Build the model in the order in which a run does it."""
    model = meta_model(config)
    apply_to_blocks(model.layers.values(), config.memory, whole_graphs=not config.model.experts)
    return sharded(model, config, init_device_mesh("cpu", (1,)))


def sharded(model: Transformer, config: TrainerConfig, mesh: DeviceMesh) -> Transformer:
    offload = offload_policy(config.memory)
    for block in model.layers.values():
        fully_shard(block, mesh=mesh, mp_policy=mixed_precision_policy(config.precision), offload_policy=offload)
    policy = mixed_precision_policy(config.precision, returns_logits=True)
    fully_shard(model, mesh=mesh, mp_policy=policy, offload_policy=offload)
    model.initialise(CPU, seed=1)
    return model


def adamw(model: Transformer) -> AdamW:
    return AdamW(model.parameters(), lr=3e-3, fused=True)


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Return sequences that count upwards, which are easy to learn."""
    starts = torch.randint(0, 64, (8, 1), generator=torch.Generator().manual_seed(step))
    tokens = starts + torch.arange(SEQUENCE + 1)
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(model: Transformer, step: int) -> Tensor:
    inputs, targets = batch(step)
    return functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def losses(model: Transformer, optimizer: Optimizer, *, steps: int, start: int = 0) -> list[float]:
    """Train; return the loss of each step."""
    seen = []
    for step in range(start, start + steps):
        loss = loss_of(model, step)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        seen.append(loss.item())
    return seen
