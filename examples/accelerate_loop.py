"""A loop with Accelerate and the lines that Holdfast needs, each marked with its number.

    holdfast run --ranks 2 --run accelerate -- python examples/accelerate_loop.py 3

The argument is the number of epochs. Without Holdfast it runs as before: ``accelerate launch --cpu
examples/accelerate_loop.py 3``. It needs the package accelerate.
"""

import sys

import torch
from accelerate import Accelerator
from torch import nn

from holdfast_hooks.frameworks.accelerate import hold  # 1


def main(epochs: int) -> None:
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    inputs = torch.randn(2048, 64)
    data = torch.utils.data.TensorDataset(inputs, inputs.mean(dim=1, keepdim=True))
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
    # [loop]
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    held = hold(accelerator)  # 2
    for epoch in held.epochs(epochs):  # 3
        for rows, targets in held.batches(loader):  # 4
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(rows), targets)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            held.hooks.report(loss=loss.detach())
        accelerator.print(f"epoch {epoch} is done")
    # [end]
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main(int(sys.argv[1]))
