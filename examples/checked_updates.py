"""A DDP script that leaves out the updates of bad batches, on all ranks together, and then lowers its learning rate.

    holdfast run --run checked --ranks 2 -- python examples/checked_updates.py 200

Rank 1 has two bad batches: one is far too large, and one holds a number that is not finite. Without Holdfast the script
leaves out the same updates: ``torchrun --nproc-per-node 2 examples/checked_updates.py 200``.
"""

import math
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import holdfast_hooks
from holdfast_hooks import Phase, Spike

BAD_BATCHES = {40: 1e3, 60: math.nan}


def batch(step: int) -> torch.Tensor:
    inputs = torch.randn(64, 32, generator=torch.Generator().manual_seed(2 * step + dist.get_rank()))
    return inputs * BAD_BATCHES.get(step, 1.0) if dist.get_rank() == 1 else inputs


def main(steps: int) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 1))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    # [spike]
    def lower_learning_rate(spike: Spike) -> None:
        for group in optimizer.param_groups:
            group["lr"] *= 0.5
        print(f"{spike.kind} at step {spike.step}: the learning rate is now {optimizer.param_groups[0]['lr']}")

    # [end]
    with holdfast_hooks.attach(
        state={"model": network, "optimizer": optimizer},
        check_data_position=False,  # the number of the step decides the batch
        on_spike=lower_learning_rate,
    ) as hooks:
        # [update]
        for step in hooks.steps(until=steps):
            inputs = batch(step)
            loss = nn.functional.mse_loss(model(inputs), inputs.mean(dim=1, keepdim=True))
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            hooks.enter(Phase.OPTIMIZER)
            if hooks.should_update(norm):
                optimizer.step()
            optimizer.zero_grad()
            hooks.report(loss=loss, grad_norm=norm)
        # [end]
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))
