"""A DDP script that trains on the same batch in a world of any size, so that nodes may be missing for a while.

    holdfast run --ranks 3 -- python examples/same_batch.py 1000

docs/multinode.md shows how to start it over several nodes with ``--min-replicas``.
"""

import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import holdfast_hooks

MICROBATCHES = 12
"""Micro-batches of a step, over all ranks. A world has at most as many ranks."""


def samples(number: int) -> torch.Tensor:
    """Return a micro-batch, which follows from its number alone."""
    return torch.randn(16, 256, generator=torch.Generator().manual_seed(number))


def main(steps: int) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 1)))
    optimizer = torch.optim.AdamW(model.parameters())
    state: dict[str, holdfast_hooks.Stateful] = {"model": model, "optimizer": optimizer}
    # [batch]
    rank, world = dist.get_rank(), dist.get_world_size()
    with holdfast_hooks.attach(state=state, replica_ranks=1, data_by_step=True) as hooks:
        for step in hooks.steps(until=steps):
            losses = torch.zeros(1)
            for number in range(rank, MICROBATCHES, world):
                inputs = samples(hooks.data_of(step) * MICROBATCHES + number)
                is_last = number + world >= MICROBATCHES
                with nullcontext() if is_last else model.no_sync():
                    loss = nn.functional.mse_loss(model(inputs), inputs.mean(dim=1, keepdim=True)) / MICROBATCHES
                    (loss * world).backward()  # DDP divides the sum of the gradients by the size of the world
                losses += loss.detach()
            dist.all_reduce(losses)
            hooks.enter(holdfast_hooks.Phase.OPTIMIZER)
            optimizer.step()
            optimizer.zero_grad()
            hooks.report(loss=losses)
    # [end]
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))
