"""Checkpoints of torch.distributed.checkpoint, of which the last one is stale, and the guard that says so.

    python examples/guard.py build/guarded
    holdfast guard build/guarded --once --quiet-s 1

The guard names step-20 as the newest good one and exits with 1. The script has no line for Holdfast.
"""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save


def main(folder: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(1, 31):
        if step <= 20:  # after that, something has stopped the training and not the saves
            inputs = torch.randn(32, 64)
            nn.functional.mse_loss(model(inputs), inputs.mean(dim=1, keepdim=True)).backward()
            optimizer.step()
            optimizer.zero_grad()
        if step % 10 == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            save(state, storage_writer=FileSystemWriter(folder / f"step-{step}"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
