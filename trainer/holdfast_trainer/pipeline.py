"""Running a batch through the model, in microbatches: with a pipeline schedule, or in a plain loop.

The loss of a microbatch is the sum over its tokens divided by the tokens of the global batch. So neither
microbatches nor ranks need weights when losses and gradients are added up.
"""

from collections.abc import Callable
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn import functional

from holdfast_trainer.batches import Batch
from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.mesh import Mesh
from holdfast_trainer.model import Transformer


class Runner(Protocol):
    """Runs this rank's part of a batch. All ranks call the same method at the same time.

    Both return the loss, averaged over the tokens of the global batch, on the ranks of the last stage; on
    the others they return None.
    """

    def forward_backward(self, batch: Batch) -> Tensor | None:
        """Add the gradients of ``batch`` to the parameters'."""

    def evaluate(self, batch: Batch) -> Tensor | None:
        """Leave the parameters' gradients alone."""


def make_runner(config: TrainerConfig, mesh: Mesh, model: Transformer, device: torch.device) -> Runner:
    """Return the runner that the number of pipeline stages asks for."""
    if mesh.size("pp") > 1:
        return ScheduledRunner(config, mesh, model, device)
    return LoopRunner(config, mesh, model)


class MeanLoss:
    """Cross-entropy of a microbatch, as its share of the mean over the global batch."""

    def __init__(self, config: TrainerConfig) -> None:
        self._tokens = config.train.global_batch * config.data.sequence

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Map logits [samples, sequence, vocabulary] and targets [samples, sequence] to a scalar."""
        total = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        return total / self._tokens


class LoopRunner:
    """One stage: microbatches one after the other."""

    def __init__(self, config: TrainerConfig, mesh: Mesh, model: Transformer) -> None:
        self._microbatches = config.parallel.microbatches
        self._mesh = mesh
        self._model = model
        self._loss = MeanLoss(config)

    def forward_backward(self, batch: Batch) -> Tensor | None:
        """See :class:`Runner`."""
        losses: list[Tensor] = []
        for inputs, targets in self._split(batch):
            loss = self._loss(self._model(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        return _sum_over_dp(losses, self._mesh)

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> Tensor | None:
        """See :class:`Runner`."""
        losses = [self._loss(self._model(inputs), targets) for inputs, targets in self._split(batch)]
        return _sum_over_dp(losses, self._mesh)

    def _split(self, batch: Batch) -> list[tuple[Tensor, Tensor]]:
        parts = self._microbatches
        return list(zip(batch.inputs.chunk(parts), batch.targets.chunk(parts), strict=True))


class ScheduledRunner:
    """Several stages: one forward, one backward in turn (Narayanan et al., "PipeDream", 2019)."""

    def __init__(self, config: TrainerConfig, mesh: Mesh, model: Transformer, device: torch.device) -> None:
        self._mesh = mesh
        self._train = Schedule1F1B(
            _stage(config, mesh, model, device),
            config.parallel.microbatches,
            loss_fn=MeanLoss(config),
            scale_grads=False,
        )
        # Of its own, stage included: a schedule prepares its stage's buffers for one kind of run.
        self._evaluation = ScheduleGPipe(
            _stage(config, mesh, model, device),
            config.parallel.microbatches,
            loss_fn=MeanLoss(config),
            scale_grads=False,
        )

    def forward_backward(self, batch: Batch) -> Tensor | None:
        """See :class:`Runner`."""
        return self._run(self._train.step, batch)

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> Tensor | None:
        """See :class:`Runner`."""
        return self._run(self._evaluation.eval, batch)

    def _run(self, step: Callable[..., object], batch: Batch) -> Tensor | None:
        inputs = (batch.inputs,) if self._mesh.is_first_stage else ()
        if not self._mesh.is_last_stage:
            step(*inputs)
            return None
        losses: list[Tensor] = []
        step(*inputs, target=batch.targets, losses=losses, return_outputs=False)
        return _sum_over_dp([loss.detach() for loss in losses], self._mesh)


def _stage(config: TrainerConfig, mesh: Mesh, model: Transformer, device: torch.device) -> PipelineStage:
    """Describe this rank's stage. Shapes are given, so that no stage has to be run to find them out."""
    samples = config.train.global_batch // config.parallel.dp // config.parallel.microbatches
    sharded = config.parallel.sequence_parallel
    stream_length = config.data.sequence // (mesh.size("tp") if sharded else 1)
    tokens = torch.empty(samples, config.data.sequence, dtype=torch.int64, device="meta")
    stream = torch.empty(samples, stream_length, config.model.dim, device="meta", requires_grad=True)
    logits = torch.empty(samples, config.data.sequence, config.model.vocabulary, device="meta", requires_grad=True)
    return PipelineStage(
        model,
        mesh.index("pp"),
        mesh.size("pp"),
        device,
        input_args=tokens if mesh.is_first_stage else stream,
        output_args=logits if mesh.is_last_stage else stream,
        group=mesh.group("pp"),
    )


def _sum_over_dp(losses: list[Tensor], mesh: Mesh) -> Tensor:
    total = torch.stack(losses).sum()
    dist.all_reduce(total, group=mesh.group("dp"))
    return total
