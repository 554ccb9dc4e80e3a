"""Data-parallel training that logs when each rank finishes each step: ``python trainer.py FOLDER STEPS``.

Every step takes a little longer until FOLDER/hurry exists, so that there is time to do harm.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import holdfast_hooks

PACE_S = 0.1


def main(folder: Path, steps: int) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    state: dict[str, holdfast_hooks.Stateful] = {"model": model, "optimizer": optimizer}
    generation = os.environ["TORCHELASTIC_RESTART_COUNT"]
    journal = folder / f"rank-{dist.get_rank()}.journal"
    with holdfast_hooks.attach(state=state) as hooks, journal.open("a", buffering=1) as lines:
        for step in hooks.steps(until=steps):
            inputs = torch.randn(8, 16)
            if not (folder / "hurry").exists():
                time.sleep(PACE_S)
            loss = nn.functional.mse_loss(model(inputs), inputs.mean(dim=1, keepdim=True))
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            hooks.report(loss=loss)
            lines.write(f"{generation} {step} {time.time()}\n")
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    (folder / f"weights-{dist.get_rank()}").write_bytes(weights.numpy().tobytes())
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
