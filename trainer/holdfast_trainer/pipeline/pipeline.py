"""Runs a batch through the model in microbatches, in every layout."""

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
    """Runs the microbatches of a batch forward and backward, in an order of its own."""

    def run(self, batch: Batch) -> list[Tensor]:
        """Add the gradients of ``batch`` to the parameters'; return the losses, none without the last stage."""

    def bubble(self) -> float | None:
        """Return the idle share of the newest step that the device has finished, or None without a pipeline."""


class Accumulation:
    """Runs one stage without a pipeline: forward and backward of one microbatch after the other."""

    def __init__(self, config: TrainerConfig, parts: ModelParts, loss: MeanLoss) -> None:
        (self._model,) = parts.modules
        self._microbatches = config.parallel.microbatches
        self._zero = config.parallel.zero
        self._loss = loss

    def run(self, batch: Batch) -> list[Tensor]:
        """Add the gradients of ``batch`` to the parameters'; return the losses of the microbatches."""
        losses: list[Tensor] = []
        inputs, targets = (whole.chunk(self._microbatches) for whole in (batch.inputs, batch.targets))
        spans = batch.spans_of_microbatches(self._microbatches)
        for index in range(self._microbatches):
            assert isinstance(self._model, FSDPModule)
            prepare_backward(self._model, zero=self._zero, last=index == self._microbatches - 1)
            loss = self._loss(self._model(inputs[index], spans[index]), targets[index])
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        return losses

    def bubble(self) -> float | None:
        """Return None: without a pipeline, no stage waits for another."""
        return None


class Runner:
    """Runs this rank's part of a batch. All ranks must call the same method at the same time.

    :meth:`forward_backward` and :meth:`evaluate` return the mean loss over the tokens of the global batch. On a rank
    without the last stage they return None.
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
        """Add the gradients of ``batch`` to the parameters' and return the loss."""
        return self._total(self._forward_backward.run(batch))

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> Tensor | None:
        """Return the loss without computing gradients."""
        losses = self._forward_chain.run(batch)
        # A backward pass would free the gathered parameters. Here there is none.
        for module in self._parts.modules:
            free_gathered_parameters(module)
        return self._total(losses)

    def bubble(self) -> float | None:
        """Return the idle share (0 to 1) of this rank's stages in the newest finished step; None without a pipeline."""
        return self._forward_backward.bubble()

    def _total(self, losses: list[Tensor]) -> Tensor | None:
        if not self._parts.holds_last_stage:
            return None
        total = torch.stack(losses).sum()
        # Context-parallel ranks are part of these two axes (see Mesh). Tensor-parallel ranks have the same loss.
        for axis in ("dp_replicate", "dp_shard"):
            if self._mesh.axis(axis).size() > 1:
                dist.all_reduce(total, group=self._mesh.group(axis))
        return total
