"""Runs a batch through the model in microbatches, in every layout."""

from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.data.batches import Batch
from holdfast_trainer.model.parts import ModelParts
from holdfast_trainer.model.stages import Stage, stage_ranks
from holdfast_trainer.moe.balance import weigh_balance_loss
from holdfast_trainer.parallel.mesh import Mesh
from holdfast_trainer.parallel.zero import free_gathered_parameters, prepare_backward
from holdfast_trainer.pipeline.cross_entropy import MeanLoss
from holdfast_trainer.pipeline.schedules import PipelineSchedule
from holdfast_trainer.pipeline.stage_tensors import like_stream
from holdfast_trainer.precision.loss_scaling import LossScaler

# Forward passes without backward passes, stage after stage, for evaluation.
#
# torch's schedules with two stages on a rank cannot run forward passes alone. So evaluation has one way for all
# schedules: a stage computes all microbatches before the next stage of the same rank begins. Different ranks overlap.


class ForwardChain:
    """Sends microbatches through this rank's stages, and from there to the ranks of the next stages."""

    def __init__(
        self, config: TrainerConfig, mesh: Mesh, parts: ModelParts, device: torch.device, loss: MeanLoss
    ) -> None:
        self._parts = parts
        self._loss = loss
        self._device = device
        self._microbatches = config.parallel.microbatches
        self._like_stream = like_stream(config)
        self._group = mesh.group("pp")
        self._pp_index = mesh.index("pp")
        self._stage_ranks = stage_ranks(config.parallel)

    @torch.no_grad()
    def run(self, batch: Batch) -> list[Tensor]:
        """Return the losses of the microbatches; none on a rank without the last stage."""
        inputs, targets = (whole.chunk(self._microbatches) for whole in (batch.inputs, batch.targets))
        spans = batch.spans_of_microbatches(self._microbatches)
        streams = list(inputs)
        sends: list[dist.Work | None] = []
        for stage, module in zip(self._parts.stages, self._parts.modules, strict=True):
            source, target = self._neighbour(stage, -1), self._neighbour(stage, +1)
            # NCCL carries out the calls between two ranks in order. A rank sends all microbatches of a stage before it
            # receives those of its next stage. So a stage that sends to the rank that it receives from must not send
            # between its receives: both ranks would wait for each other. It sends at the end.
            sends_at_once = source is None or source != target
            for index in range(self._microbatches):
                stream = streams[index] if source is None else self._receive(source)
                streams[index] = module(stream, spans[index])
                if sends_at_once:
                    sends += self._send(streams[index : index + 1], target)
            if not sends_at_once:
                sends += self._send(streams, target)
        for send in sends:
            assert send is not None
            send.wait()
        if not self._parts.holds_last_stage:
            return []
        return [self._loss(logits, labels) for logits, labels in zip(streams, targets, strict=True)]

    def _neighbour(self, stage: Stage, step: int) -> int | None:
        """Return the rank of the stage before (-1) or after (+1) ``stage``; None if it is this rank, or no rank."""
        index = stage.index + step
        if not 0 <= index < stage.count or self._stage_ranks[index] == self._pp_index:
            return None
        return self._stage_ranks[index]

    def _receive(self, source: int) -> Tensor:
        stream = torch.empty_like(self._like_stream, device=self._device)
        dist.recv(stream, group=self._group, group_src=source)
        return stream

    def _send(self, streams: list[Tensor], target: int | None) -> list[dist.Work | None]:
        if target is None:
            return []
        return [dist.isend(stream, group=self._group, group_dst=target) for stream in streams]


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
