"""A plain DDP script that knows nothing of Holdfast: ``--auto`` watches it as it is.

holdfast observe --auto -- torchrun --nproc-per-node 2 examples/no_line.py 1000
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


def main(steps: int) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 1)))
    optimizer = torch.optim.AdamW(model.parameters())
    inputs = torch.randn(1024, 512)
    batches = DataLoader(TensorDataset(inputs, inputs.mean(dim=1, keepdim=True)), batch_size=64, shuffle=True)
    step = 0
    while step < steps:
        for rows, targets in batches:
            nn.functional.mse_loss(model(rows), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step == steps:
                break
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))
