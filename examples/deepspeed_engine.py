"""A DeepSpeed engine with the one line that Holdfast needs. It needs deepspeed.

    holdfast run --ranks 2 --run deepspeed -- python examples/deepspeed_engine.py 200 build/deepspeed

The arguments are the number of steps and the folder for DeepSpeed's own checkpoints. After a restart the loop continues
from the newest of them. Without Holdfast it runs as before: ``torchrun --nproc-per-node 2
examples/deepspeed_engine.py 200 build/deepspeed``.
"""

import os
import sys
from pathlib import Path

import torch
from torch import nn

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import deepspeed  # it looks for a GPU when it is imported

from holdfast_hooks.frameworks.deepspeed import watch_engine

# On a CPU, DeepSpeed would first compile a communication of its own. gloo does here.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def main(steps: int, folder: str) -> None:
    deepspeed.init_distributed(dist_backend="gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    config = {
        "train_micro_batch_size_per_gpu": 16,
        "gradient_accumulation_steps": 2,
        "zero_optimization": {"stage": 1},
    }
    # [line]
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    if Path(folder, "latest").exists():
        engine.load_checkpoint(folder)
    watch = watch_engine(engine)
    # [end]
    while engine.global_steps < steps and not (watch is not None and watch.should_stop):
        for _ in range(engine.gradient_accumulation_steps()):
            inputs = torch.randn(16, 64)
            loss = nn.functional.mse_loss(engine(inputs), inputs.mean(dim=1, keepdim=True))
            engine.backward(loss)
            engine.step()
        if engine.global_steps % 100 == 0:
            engine.save_checkpoint(folder)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
