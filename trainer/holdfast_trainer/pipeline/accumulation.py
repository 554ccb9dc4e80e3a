"""One stage: microbatches one after the other, their gradients added up."""

from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.data.batches import Batch
from holdfast_trainer.model.parts import ModelParts
from holdfast_trainer.parallel.zero import prepare_backward
from holdfast_trainer.pipeline.cross_entropy import MeanLoss


class Accumulation:
    """Forward and backward of each microbatch in turn."""

    def __init__(self, config: TrainerConfig, parts: ModelParts, loss: MeanLoss) -> None:
        (self._model,) = parts.modules
        self._microbatches = config.parallel.microbatches
        self._zero = config.parallel.zero
        self._loss = loss

    def run(self, batch: Batch) -> list[Tensor]:
        """Add the gradients of ``batch`` to the parameters'; return the losses of the microbatches."""
        losses: list[Tensor] = []
        inputs, targets = (whole.chunk(self._microbatches) for whole in (batch.inputs, batch.targets))
        for index in range(self._microbatches):
            assert isinstance(self._model, FSDPModule)
            prepare_backward(self._model, zero=self._zero, last=index == self._microbatches - 1)
            loss = self._loss(self._model(inputs[index]), targets[index])
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        return losses

    def bubble(self) -> float | None:
        """Return None: there is nobody to wait for."""
        return None
