"""Trains a small model with a DeepSpeed engine: accumulation, clipping, ZeRO.

    python deepspeed_job.py OUT [--stage 1 | --pipeline] [--batches N] [--no-line]

With --pipeline the model has two stages, one for each rank, and every tenth step is followed by an evaluation.
The end writes OUT/end-RANK.json. Until the file named by PACED_HURRY exists, each batch takes longer.
"""

import argparse
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import deepspeed  # it looks for a GPU when it is imported
from deepspeed.pipe import PipelineModule

# DeepSpeed would compile its own communication for the CPU, for a minute, and leave a lock behind if it is killed.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False

MICRO_BATCHES = 2


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--stage", type=int, default=1)
    parser.add_argument("--pipeline", action="store_true")
    parser.add_argument("--no-line", action="store_true")
    parser.add_argument("--batches", type=int, default=1_000_000)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    deepspeed.init_distributed(dist_backend="gloo")
    torch.manual_seed(0)
    layers = [nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)]
    mse = nn.functional.mse_loss
    model = PipelineModule(layers, num_stages=2, loss_fn=mse) if options.pipeline else nn.Sequential(*layers)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        config={
            "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": MICRO_BATCHES,
            "gradient_clipping": 1.0,
            "zero_optimization": {"stage": 0 if options.pipeline else options.stage},
            "csv_monitor": {"enabled": True, "output_path": str(options.out / "csv"), "job_name": "job"},
        },
    )
    watch = None
    if not options.no_line:
        from holdfast_hooks.frameworks.deepspeed import watch_engine

        watch = watch_engine(engine)  # the line
    if options.pipeline:
        train_pipeline(engine, options.batches // MICRO_BATCHES)
        return
    for _ in range(options.batches):
        pause()
        inputs = torch.randn(4, 8)
        loss = mse(engine(inputs), inputs.sum(dim=1, keepdim=True))
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


def train_pipeline(engine: Any, steps: int) -> None:
    batches = data()
    for step in range(steps):
        pause()
        engine.train_batch(batches)
        if step % 10 == 9:
            engine.eval_batch(batches)


def data() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    while True:
        inputs = torch.randn(4, 8)
        yield inputs, inputs.sum(dim=1, keepdim=True)


def pause() -> None:
    if not Path(os.environ.get("PACED_HURRY", "/")).exists():
        time.sleep(0.02)


if __name__ == "__main__":
    main()
