"""The training script of ``benchmarks/recovery.py --torchrun``: two small ranks, with Holdfast or with torch.save.

Usage: torchrun_ranks.py FOLDER. Rank 0 appends each step that it has ended, with the time, to FOLDER/steps. Without
Holdfast it saves a checkpoint of its own every SAVE_EVERY steps, and all ranks load it at their start.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import holdfast_hooks
from holdfast_proto.rank_context import VARIABLE

SAVE_EVERY = 20
STEP_S = 0.1


def main(folder: Path) -> None:
    """Train until the launcher is ended."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1)))
    optimizer = torch.optim.AdamW(model.parameters())
    (folder / f"pid-{dist.get_rank()}").write_text(str(os.getpid()))
    is_watched, own = VARIABLE in os.environ, folder / "own.pt"
    with holdfast_hooks.attach(state={"model": model, "optimizer": optimizer}, check_data_position=False) as hooks:
        first = 0 if is_watched or not own.exists() else _load(own, model, optimizer)
        for step in hooks.steps(until=1_000_000, start=first):
            time.sleep(STEP_S)
            loss = model(torch.randn(64, 256)).square().mean()
            loss.backward()
            hooks.enter(holdfast_hooks.Phase.OPTIMIZER)
            optimizer.step()
            optimizer.zero_grad()
            hooks.report(loss=loss)
            if dist.get_rank() == 0:
                with (folder / "steps").open("a") as steps:
                    steps.write(f"{time.time()} {step}\n")
                if not is_watched and (step + 1) % SAVE_EVERY == 0:
                    _save(own, step + 1, model, optimizer)


def _save(path: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    partial = path.with_suffix(".partial")
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, partial)
    partial.rename(path)


def _load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    saved = torch.load(path, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return int(saved["step"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
