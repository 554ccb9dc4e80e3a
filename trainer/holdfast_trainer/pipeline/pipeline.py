"""Running a batch through the model, in microbatches, whatever the layout."""

from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.data.batches import Batch
from holdfast_trainer.model.parts import ModelParts
from holdfast_trainer.moe.balance import weigh_balance_loss
from holdfast_trainer.parallel.mesh import Mesh
from holdfast_trainer.parallel.zero import free_gathered_parameters, prepare_backward
from holdfast_trainer.pipeline.cross_entropy import MeanLoss
from holdfast_trainer.pipeline.forward_chain import ForwardChain
from holdfast_trainer.pipeline.schedules import PipelineSchedule
from holdfast_trainer.precision.loss_scaling import LossScaler


class ForwardBackward(Protocol):
    """Runs the microbatches of a batch forward and backward, in some order."""

    def run(self, batch: Batch) -> list[Tensor]:
        """Add the gradients of ``batch`` to the parameters'; return the losses, none without the last stage."""

    def bubble(self) -> float | None:
        """Return the idle share of the newest step that the device has finished, if there can be one."""


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


class Runner:
    """Runs this rank's part of a batch. All ranks call the same method at the same time.

    Both methods return the loss, averaged over the tokens of the global batch, on the ranks that hold the last
    stage; on the others they return None.
    """

    def __init__(
        self, config: TrainerConfig, mesh: Mesh, parts: ModelParts, device: torch.device, scaler: LossScaler | None
    ) -> None:
        self._mesh = mesh
        self._parts = parts
        loss = MeanLoss(config, mesh, scaler)
        for module in parts.modules:
            loss_scale = None if scaler is None else scaler.scale
            weigh_balance_loss(module, sequences=config.train.global_batch, loss_scale=loss_scale)
        self._forward_chain = ForwardChain(config, mesh, parts, device, loss)
        self._forward_backward: ForwardBackward = (
            PipelineSchedule(config, mesh, parts, device, loss)
            if mesh.size("pp") > 1
            else Accumulation(config, parts, loss)
        )

    def forward_backward(self, batch: Batch) -> Tensor | None:
        """Add the gradients of ``batch`` to the parameters'."""
        return self._total(self._forward_backward.run(batch))

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> Tensor | None:
        """Leave the parameters' gradients alone."""
        losses = self._forward_chain.run(batch)
        for module in self._parts.modules:
            free_gathered_parameters(module)
        return self._total(losses)

    def bubble(self) -> float | None:
        """Return the share of the newest finished step (0 to 1) that this rank's stages sat idle, if it has peers."""
        return self._forward_backward.bubble()

    def _total(self, losses: list[Tensor]) -> Tensor | None:
        if not self._parts.holds_last_stage:
            return None
        total = torch.stack(losses).sum()
        for axis in ("dp_replicate", "dp_shard"):
            if self._mesh.axis(axis).size() > 1:
                dist.all_reduce(total, group=self._mesh.group(axis))
        return total
