"""Trains a small model in a loop with Accelerate. What it writes tells whether two runs were the same.

    python accelerate_job.py OUT [--accumulate N] [--plain | --no-line]

Every optimizer step adds a line with the samples that it used to OUT/samples-RANK. The end writes OUT/model and
OUT/optimizer.pt. Until the file named by PACED_HURRY exists, each step takes 0.1 s longer. With --plain the loop knows
nothing of Holdfast. With --no-line it also has no end, and writes nothing. Once the file PACED_HURRY.hang exists, rank
1 stands still in its model.
"""

import argparse
import os
import time
from pathlib import Path
from typing import Any, NoReturn

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from safetensors.torch import save_file
from torch import nn

SAMPLES, WIDTH, EPOCHS = 60, 16, 3


class Hanging(nn.Module):
    """Passes on what it gets, until a file tells rank 1 to stand still."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        stand_still()
        return inputs


def stand_still() -> None:
    if os.environ.get("RANK") == "1" and Path(os.environ.get("PACED_HURRY", "/none") + ".hang").exists():
        time.sleep(1000)


def tracker() -> Any:
    from holdfast_hooks.frameworks.accelerate import HoldfastTracker

    return HoldfastTracker()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--no-line", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    is_plain = options.plain or options.no_line
    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=options.accumulate, log_with=None if is_plain else tracker()
    )
    if not is_plain:
        accelerator.init_trackers("job")
    set_seed(5)
    rows = torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(3))
    data = torch.utils.data.TensorDataset(torch.arange(SAMPLES), rows)
    model: nn.Module = nn.Sequential(Hanging(), nn.Linear(WIDTH, 32), nn.Dropout(0.1), nn.ReLU(), nn.Linear(32, 1))
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=6, gamma=0.5)
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    if options.no_line:
        train_without_end(accelerator, model, optimizer, loader)
    record = options.out / f"samples-{accelerator.process_index}"
    used: list[int] = []

    def train(numbers: torch.Tensor, inputs: torch.Tensor, step: int) -> None:
        nonlocal used
        with accelerator.accumulate(model):
            used += numbers.tolist()
            loss = nn.functional.mse_loss(model(inputs), inputs.mean(dim=1, keepdim=True))
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        accelerator.log({"train_loss": loss.detach(), "lr": scheduler.get_last_lr()[0]})
        if accelerator.sync_gradients:
            with record.open("a") as file:
                file.write(f"{step} {used}\n")
            used = []
            if not Path(os.environ.get("PACED_HURRY", "/")).exists():
                time.sleep(0.1)

    if options.plain:
        steps = 0
        for _ in range(EPOCHS):
            for numbers, inputs in loader:
                train(numbers, inputs, steps)
                steps += accelerator.sync_gradients
    else:
        from holdfast_hooks.frameworks.accelerate import hold

        held = hold(accelerator)
        for _ in held.epochs(EPOCHS):
            for numbers, inputs in held.batches(loader):
                train(numbers, inputs, held.step)
    if accelerator.is_main_process:
        (options.out / "model").mkdir()
        save_file(accelerator.unwrap_model(model).state_dict(), options.out / "model" / "model.safetensors")
        torch.save(optimizer.optimizer.state_dict(), options.out / "optimizer.pt")
    accelerator.wait_for_everyone()
    accelerator.end_training()


def train_without_end(accelerator: Accelerator, model: nn.Module, optimizer: Any, loader: Any) -> NoReturn:
    """Train in a loop that knows nothing of Holdfast."""
    while True:
        for _, inputs in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(inputs).square().mean())
                optimizer.step()
                optimizer.zero_grad()
            time.sleep(0.02)


if __name__ == "__main__":
    main()
