"""A plain DDP script with the five lines that Holdfast needs, each marked with its number.

    holdfast observe -- torchrun --nproc-per-node 2 examples/ddp.py 1000

Without Holdfast it runs as before: ``torchrun --nproc-per-node 2 examples/ddp.py 1000``.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import holdfast_hooks  # 1


def main(steps: int) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 1)))
    optimizer = torch.optim.AdamW(model.parameters())
    with holdfast_hooks.attach() as hooks:  # 2
        for _ in hooks.steps(until=steps):  # 3
            inputs = torch.randn(64, 512)
            loss = nn.functional.mse_loss(model(inputs), inputs.mean(dim=1, keepdim=True))
            loss.backward()
            hooks.enter(holdfast_hooks.Phase.OPTIMIZER)  # 4
            optimizer.step()
            optimizer.zero_grad()
            hooks.report(loss=loss)  # 5
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))
