"""Trains a small model in two workers of Ray Train, with a cluster of its own or in one that runs already.

    python ray_job.py OUT [--keep | --address HOST:PORT] [--steps N] [--hang-at STEP] [--no-line]

Rank 1 of the first workers hangs at a step; the next ones do not. OUT gets end-RANK.json at the end. With --keep, OUT
then gets the cluster's address, and the cluster lives until the standard input ends. Until the file named by
PACED_HURRY exists, each step takes longer.
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
import ray
import ray.train
from ray.train.torch import TorchTrainer


def hang_here() -> None:
    while True:
        time.sleep(0.1)


def train(config: dict[str, Any]) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn

    from holdfast_hooks.frameworks.ray_train import watch_worker

    torch.set_num_threads(1)
    out, rank = Path(config["out"]), dist.get_rank()
    starts = out / f"starts-{rank}"
    is_first = not starts.exists()
    starts.touch()
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = [torch.full((4, 8), (step % 7) / 7) for step in range(config["steps"])]
    utilities = sys.modules["ray.train.v2._internal.execution.train_fn_utils"].get_train_fn_utils()
    with contextlib.nullcontext() if config["no_line"] else watch_worker() as watch:
        wrapped = "report" in vars(utilities)
        for step, inputs in enumerate(loader if watch is None else watch.batches(loader)):
            if not Path(config["hurry"]).exists():
                time.sleep(0.2)
            if is_first and rank == 1 and step == config["hang_at"]:
                hang_here()
            loss = nn.functional.mse_loss(model(inputs), inputs.mean(dim=1, keepdim=True))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            if step % 5 == 4:
                ray.train.report({"train_loss": loss.item(), "step": step})
    end = {
        "weights": float(sum(parameter.double().sum() for parameter in model.parameters())).hex(),
        "wrapped": wrapped,
        "still_wrapped": "report" in vars(utilities),
        "hooked": sys.excepthook is not sys.__excepthook__ and "holdfast" in repr(sys.excepthook),
    }
    (out / f"end-{rank}.json").write_text(json.dumps(end))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--address")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--hang-at", type=int, default=-1)
    parser.add_argument("--no-line", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    from holdfast_hooks.frameworks.ray_train import reach_workers

    # A socket's path may have 107 characters, and Ray needs most of them.
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as place:
        if options.address:
            ray.init(address=options.address, log_to_driver=False)
        else:
            ray.init(
                num_cpus=2,
                include_dashboard=False,
                log_to_driver=False,
                object_store_memory=80_000_000,
                _temp_dir=place,
                _node_ip_address="127.0.0.1",
            )
        config = {name: getattr(options, name) for name in ("steps", "hang_at", "no_line")}
        run_config = ray.train.RunConfig(
            storage_path=str(options.out / "ray"), failure_config=ray.train.FailureConfig(max_failures=1)
        )
        trainer = TorchTrainer(
            train,
            train_loop_config={**config, "out": str(options.out), "hurry": os.environ.get("PACED_HURRY", "/")},
            scaling_config=ray.train.ScalingConfig(num_workers=2),
            run_config=reach_workers(run_config) if options.address else run_config,
        )
        trainer.fit()
        if options.keep:
            (options.out / "address").write_text(ray.get_runtime_context().gcs_address)
            sys.stdin.read()
        ray.shutdown()


if __name__ == "__main__":
    main()
