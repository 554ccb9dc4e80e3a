"""A script that saves more than its model: its scheduler, an average of its weights, and its position in the data.

    holdfast run --run own-state -- python examples/own_state.py 200

Run it again with 400: it continues at step 200, with the sample that comes next.
"""

import hashlib
import sys

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import holdfast_hooks
from holdfast_hooks import Phase

SAMPLES = 1000
BATCH = 32
EVALUATE_EVERY = 50


# [position]
class Samples:
    """Batches of shuffled sample numbers. The position is all of its state: the epoch alone decides the order."""

    def __init__(self) -> None:
        self.epoch = 0
        self.position = 0

    def __next__(self) -> torch.Tensor:
        if self.position + BATCH > SAMPLES:
            self.epoch, self.position = self.epoch + 1, 0
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(self.epoch))
        self.position += BATCH
        return order[self.position - BATCH : self.position]

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.position = state["epoch"], state["position"]

    def skip(self, steps: int) -> None:
        """Leave out the data of the next steps. Holdfast calls it when it rolls a run back after a bad loss."""
        for _ in range(steps):
            next(self)

    def fingerprint(self) -> bytes:
        """Return 8 bytes that differ for every batch. Holdfast reports an incident if two steps have the same."""
        return hashlib.blake2b(f"{self.epoch} {self.position}".encode(), digest_size=8).digest()


# [end]


def main(steps: int) -> None:
    torch.manual_seed(0)
    data = torch.randn(SAMPLES, 64)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=100, gamma=0.5)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    samples = Samples()

    def loss_of(module: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(module(inputs), inputs.mean(dim=1, keepdim=True))

    # [state]
    state: dict[str, holdfast_hooks.Stateful] = {
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "average": average,
        "samples": samples,
    }
    # [end]
    with holdfast_hooks.attach(state=state) as hooks:
        for step in hooks.steps(until=steps):
            hooks.enter(Phase.DATA)
            inputs = data[next(samples)]
            hooks.enter(Phase.FORWARD_BACKWARD)
            loss = loss_of(model, inputs)
            loss.backward()
            hooks.enter(Phase.OPTIMIZER)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            average.update_parameters(model)
            hooks.report(loss=loss, tokens=BATCH, samples=samples.fingerprint())
            if (step + 1) % EVALUATE_EVERY == 0:
                hooks.enter(Phase.EVAL)
                with torch.no_grad():
                    validation_loss = loss_of(average, data).item()
                hooks.report(validation_loss=validation_loss)
                print(f"step {step}: epoch {samples.epoch}, validation loss {validation_loss:.6f}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
