"""Trains a small model with a DeepSpeed engine: accumulation, clipping, ZeRO.

    python deepspeed_job.py OUT [--stage 1] [--batches N]

The end writes OUT/end-RANK.json. Until the file named by PACED_HURRY exists, each batch takes longer.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
from torch import nn

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import deepspeed  # it looks for a GPU when it is imported


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--stage", type=int, default=1)
    parser.add_argument("--batches", type=int, default=1_000_000)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    deepspeed.init_distributed(dist_backend="gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        config={
            "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": 2,
            "gradient_clipping": 1.0,
            "zero_optimization": {"stage": options.stage},
        },
    )
    from holdfast_hooks.frameworks.deepspeed import watch_engine

    watch = watch_engine(engine)  # the line
    for _ in range(options.batches):
        if not Path(os.environ.get("PACED_HURRY", "/")).exists():
            time.sleep(0.02)
        inputs = torch.randn(4, 8)
        loss = nn.functional.mse_loss(engine(inputs), inputs.sum(dim=1, keepdim=True))
        engine.backward(loss)
        engine.step()
        if watch is not None and watch.should_stop:
            break
    end = {
        "global_steps": engine.global_steps,
        "wrapped": sorted({"forward", "backward", "step"} & set(vars(engine))),
        "weights": float(sum(parameter.double().sum() for parameter in model.parameters())).hex(),
    }
    (options.out / f"end-{engine.global_rank}.json").write_text(json.dumps(end))


if __name__ == "__main__":
    main()
