"""The loss on text that is not trained on."""

import torch
from torch import Tensor

from holdfast_trainer.data.batches import Batches
from holdfast_trainer.pipeline.pipeline import Runner


def validation_loss(runner: Runner, batches: Batches, *, count: int) -> Tensor | None:
    """Return the mean loss over ``count`` validation batches on the ranks of the last stage, else None.

    All ranks must call it.
    """
    losses = [runner.evaluate(batches.validation(index)) for index in range(count)]
    known = [loss for loss in losses if loss is not None]
    return torch.stack(known).mean() if known else None
