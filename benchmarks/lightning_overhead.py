"""Measure what LightningHoldfast adds to each step of a Lightning fit, with a live reporter and a real server.

    build/frameworks/bin/python -m benchmarks.lightning_overhead [--rounds N] [--json]

A process fits a model of one small layer as fast as Lightning can, and another one the same with an agent's context.
They take turns. No snapshot is due. Of several rounds the quietest counts for each of them, and the figure is the
difference of their median steps.
"""

import argparse
import itertools
import json
import statistics
import time
from typing import Any

from benchmarks.framework_overhead import measure

STEPS = 2000
WARM_UP_STEPS = 200


def median_step_us() -> float:
    """Fit with the callback; return the median microseconds from the end of a batch to the end of the next."""
    import lightning
    import torch

    from holdfast_hooks.frameworks.lightning import LightningHoldfast

    ends: list[float] = []

    class Clock(lightning.Callback):  # type: ignore[misc]
        """Notes when batches end."""

        def on_train_batch_end(self, *_: Any) -> None:
            """Note the time."""
            ends.append(time.perf_counter())

    class Layer(lightning.LightningModule):  # type: ignore[misc]
        """A model with next to no work."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            """Return a loss."""
            loss: torch.Tensor = self.layer(batch).square().mean()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            """Return the simplest optimizer."""
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    torch.set_num_threads(1)
    trainer = lightning.Trainer(
        callbacks=[Clock(), LightningHoldfast()],
        max_steps=STEPS,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    inputs: Any = torch.randn(4 * STEPS, 8)
    trainer.fit(Layer(), torch.utils.data.DataLoader(inputs, batch_size=4))
    steps = [after - before for before, after in itertools.pairwise(ends)]
    return statistics.median(steps[WARM_UP_STEPS:]) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(median_step_us())
        return
    figures = measure("benchmarks.lightning_overhead", options.rounds)
    print(
        f"a step of {figures['without_us']:g} us takes {figures['with_us']:g} us with LightningHoldfast:"
        f" {figures['added_us']:g} us more"
    )
    if options.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
