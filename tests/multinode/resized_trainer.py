"""Sharded training that keeps its global batch in a world of any size: ``python resized_trainer.py FOLDER STEPS``.

Rank 0 writes the generation, the step and the loss of each step. Every step takes a little longer until FOLDER/hurry
exists.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import holdfast_hooks

PACE_S = 0.1
MICROBATCHES = 8


def main(folder: Path, steps: int) -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
    fully_shard(model, mesh=init_device_mesh("cpu", (world_size,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    state: dict[str, holdfast_hooks.Stateful] = {
        "model": model,
        "optimizer": holdfast_hooks.by_name(optimizer, model),
    }
    generation = os.environ["TORCHELASTIC_RESTART_COUNT"]
    with (
        holdfast_hooks.attach(state=state, check_data_position=False, replica_ranks=1) as hooks,
        (folder / "losses").open("a", buffering=1) as lines,
    ):
        for step in hooks.steps(until=steps):
            if not (folder / "hurry").exists():
                time.sleep(PACE_S)
            numbers = torch.Generator().manual_seed(step)
            inputs = torch.randn(MICROBATCHES, 4, 16, generator=numbers)
            total = torch.zeros(())
            for number in range(rank, MICROBATCHES, world_size):
                error = model(inputs[number]) - inputs[number].sin().mean(dim=1, keepdim=True)
                loss = error.square().mean() / MICROBATCHES
                torch.autograd.backward(loss * world_size)  # gradients are averaged over the ranks
                total += loss.detach()
            optimizer.step()
            optimizer.zero_grad()
            dist.all_reduce(total)
            hooks.report(loss=total)
            if rank == 0:
                lines.write(f"{generation} {step} {total.item()!r}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
    # FSDP keeps gloo's threads alive. If one of them frees a tensor while Python ends, the process is aborted.
    os._exit(0)
