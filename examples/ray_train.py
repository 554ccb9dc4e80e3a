"""A Ray Train script with the line that Holdfast needs in the training function. It needs ray[train].

    holdfast observe -- python examples/ray_train.py 40

Ray starts the two workers, and Holdfast watches them. If one hangs, Holdfast names it and its line of code. Without
Holdfast the script runs as before: ``python examples/ray_train.py 40``. The argument is the number of epochs.
"""

import sys
from typing import Any

import ray.train
import torch
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from holdfast_hooks.frameworks.ray_train import HoldfastUserCallback, watch_worker


# [loop]
def train(config: dict[str, Any]) -> None:
    inputs = torch.randn(1024, 16, generator=torch.Generator().manual_seed(0))
    samples = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
    loader = prepare_data_loader(DataLoader(samples, batch_size=32))
    model = prepare_model(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with watch_worker() as watch:  # 1
        for epoch in range(config["epochs"]):
            for rows, targets in watch.batches(loader):  # 2
                loss = nn.functional.mse_loss(model(rows), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            ray.train.report({"train_loss": loss.item(), "epoch": epoch})


# [end]
def main(epochs: int) -> None:
    ray.init(num_cpus=2, include_dashboard=False)
    trainer = TorchTrainer(
        train,
        train_loop_config={"epochs": epochs},
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(
            callbacks=[HoldfastUserCallback()], failure_config=ray.train.FailureConfig(max_failures=1)
        ),
    )
    trainer.fit()
    ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
