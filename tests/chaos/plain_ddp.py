"""A training script that knows nothing of Holdfast. Usage: plain_ddp.py STEPS [FAULT RANK]

FAULT: ``data`` never returns a batch after 30; ``slow`` sleeps in each forward pass.
"""

import sys
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

STEPS = int(sys.argv[1])
FAULT, RANK = (sys.argv[2], int(sys.argv[3])) if len(sys.argv) > 3 else ("", -1)


class Samples(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in range(4 * STEPS):
            if FAULT == "data" and dist.get_rank() == RANK and number == 120:
                time.sleep(1e6)
            yield torch.randn(16)


def main() -> None:
    dist.init_process_group("gloo")
    is_slow = FAULT == "slow" and dist.get_rank() == RANK
    model = DistributedDataParallel(nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    for inputs in DataLoader(Samples(), batch_size=4):
        time.sleep(0.15 if is_slow else 0.02)
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
