"""Trains a small model with Lightning: accumulation, validation, kept models, schedulers, metrics.

    python lightning_job.py OUT FILES [--epochs N] [--loader plain|stateful|generator] [--manual] ...

Each batch adds a line with the numbers of its samples to OUT/samples-RANK. The end writes Lightning's own checkpoint
and what it leaves out to OUT/end-RANK.pt. FILES is ModelCheckpoint's folder: it is part of the state, so that runs to
compare have the same one. Until the file named by PACED_HURRY exists, each batch takes longer. If the file OUT/hang
exists, rank 1 removes it and hangs.
"""

import argparse
import importlib
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchmetrics
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("out", type=Path)
parser.add_argument("files", type=Path)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--loader", choices=["plain", "stateful", "generator"], default="plain")
parser.add_argument("--manual", action="store_true", help="manual optimization with two optimizers")
parser.add_argument("--no-line", action="store_true", help="leave the callback to the entry point")
parser.add_argument("--devices", type=int, default=0, help="have Lightning start this number of ranks")
parser.add_argument("--package", default="lightning.pytorch")
parser.add_argument("--resume", help="a checkpoint of Lightning to begin with")
options = parser.parse_args()

pl: Any = importlib.import_module(options.package)
callbacks = importlib.import_module(f"{options.package}.callbacks")


class Numbers(Dataset[Any]):
    """Samples whose values follow from their number; some noise comes from the global generator."""

    def __len__(self) -> int:
        return 240

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        inputs = torch.randn(8, generator=torch.Generator().manual_seed(index))
        return inputs + 0.01 * torch.randn(8), inputs.sum().reshape(1), index


class Model(pl.LightningModule):  # type: ignore[misc] # the package is an argument
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
        self.error = torchmetrics.MeanAbsoluteError()
        self.automatic_optimization = not options.manual
        self.seen = 0
        self.handlers: list[str] = []

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["seen"] = self.seen

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.seen = checkpoint["seen"]

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor | None:
        if not Path(os.environ.get("PACED_HURRY", "/")).exists():
            time.sleep(0.04)
        self.handlers = [type(signal.getsignal(number)).__name__ for number in (signal.SIGTERM, signal.SIGUSR1)]
        if self.global_rank == 1:
            hang_if_asked()
        inputs, targets, numbers = batch
        with (options.out / f"samples-{self.global_rank}").open("a") as file:
            file.write(f"{self.trainer.current_epoch * 1000 + batch_idx} {numbers.tolist()}\n")
        self.seen += len(numbers)
        outputs = self.layers(inputs)
        loss = nn.functional.mse_loss(outputs, targets)
        self.error(outputs, targets)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        self.log("error", self.error, on_epoch=True)
        if self.automatic_optimization:
            return loss
        first, second = self.optimizers()
        for optimizer in (first, second):
            optimizer.zero_grad()
        self.manual_backward(loss)
        first.step()
        second.step()
        return None

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        inputs, targets, _numbers = batch
        self.log("val_loss", nn.functional.mse_loss(self.layers(inputs), targets), sync_dist=True)

    def configure_optimizers(self) -> Any:
        if not self.automatic_optimization:
            first, last = self.layers[0], self.layers[1:]
            return [torch.optim.SGD(first.parameters(), lr=0.01), torch.optim.AdamW(last.parameters(), lr=0.01)]
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
        return [optimizer], [
            {"scheduler": cosine, "interval": "step"},
            {"scheduler": plateau, "interval": "epoch", "monitor": "train_loss_epoch"},
        ]


def hang_if_asked() -> None:
    if (options.out / "hang").exists():
        (options.out / "hang").unlink()
        while True:
            time.sleep(60)  # the line that hangs


def loader(data: Dataset[Any]) -> Any:
    if options.loader == "stateful":
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(data, batch_size=4, shuffle=True)
    generator = torch.Generator().manual_seed(7) if options.loader == "generator" else None
    return DataLoader(data, batch_size=4, shuffle=True, generator=generator)


def main() -> None:
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    pl.seed_everything(3)
    line = []
    if not options.no_line:
        from holdfast_hooks.frameworks.lightning import LightningHoldfast

        line = [LightningHoldfast()]
    world = options.devices or int(os.environ.get("WORLD_SIZE", "1"))
    same_names = {"save_top_k": -1, "enable_version_counter": False}
    keep = callbacks.ModelCheckpoint(options.files / "best", monitor="val_loss", **{**same_names, "save_top_k": 2})
    often = callbacks.ModelCheckpoint(options.files / "often", every_n_train_steps=5, **same_names)
    trainer = pl.Trainer(
        max_epochs=options.epochs,
        devices=world,
        strategy="ddp" if world > 1 else "auto",
        accelerator="cpu",
        accumulate_grad_batches=1 if options.manual else 3,
        val_check_interval=0.5,
        use_distributed_sampler=options.loader != "generator",
        limit_val_batches=2,
        callbacks=[*line, keep, often, callbacks.EarlyStopping("val_loss", patience=100)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data, model = Numbers(), Model()
    trainer.fit(model, loader(data), DataLoader(data, batch_size=4), ckpt_path=options.resume)
    end = {
        "checkpoint": trainer._checkpoint_connector.dump_checkpoint(weights_only=False),
        "metrics": dict(trainer.callback_metrics),
        "random": [torch.get_rng_state(), repr(np.random.get_state()), repr(random.getstate())],
        "handlers": model.handlers,
        "callbacks": [type(one).__name__ for one in trainer.callbacks if "Holdfast" in type(one).__name__],
    }
    torch.save(end, options.out / f"end-{trainer.global_rank}.pt")


if __name__ == "__main__":
    main()
