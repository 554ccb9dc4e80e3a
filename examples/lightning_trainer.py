"""A Lightning script with the one line that Holdfast needs. It needs lightning.

    holdfast run --ranks 2 -- python examples/lightning_trainer.py 4

Kill a rank: the run continues from its newest snapshot, in the middle of the epoch. Without Holdfast the script runs
as before: ``python examples/lightning_trainer.py 4``. The argument is the number of epochs.
"""

import os
import sys

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from holdfast_hooks.frameworks.lightning import LightningHoldfast


class Regression(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        inputs, targets = batch
        return nn.functional.mse_loss(self.layers(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main(epochs: int) -> None:
    lightning.seed_everything(0)
    inputs = torch.randn(4096, 16)
    batches = DataLoader(TensorDataset(inputs, inputs.sum(dim=1, keepdim=True)), batch_size=32, shuffle=True)
    # [line]
    trainer = lightning.Trainer(
        callbacks=[LightningHoldfast()],
        max_epochs=epochs,
        devices=int(os.environ.get("WORLD_SIZE", "1")),
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    # [end]
    trainer.fit(Regression(), batches)


if __name__ == "__main__":
    main(int(sys.argv[1]))
