"""A plain DDP script, as docs/own-trainer.md shows it: ``torchrun --nproc-per-node 2 ddp.py STEPS``."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import holdfast_hooks


def main(steps: int) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 1)))
    optimizer = torch.optim.AdamW(model.parameters())
    with holdfast_hooks.attach() as hooks:
        for _ in hooks.steps(until=steps):
            inputs = torch.randn(64, 512)
            loss = nn.functional.mse_loss(model(inputs), inputs.mean(dim=1, keepdim=True))
            loss.backward()  # type: ignore[no-untyped-call]
            hooks.enter(holdfast_hooks.Phase.OPTIMIZER)
            optimizer.step()
            optimizer.zero_grad()
            hooks.report(loss=loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))
