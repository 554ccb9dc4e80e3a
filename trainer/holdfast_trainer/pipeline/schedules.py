"""Training steps of several pipeline stages: the schedules of torch.distributed.pipelining.

torch's schedules decide the order of the passes, exchange the activations, and switch the flags of ``fully_shard``. Of
our own are the choice of the schedule, the shapes at its borders, and the measured bubble.
"""

from typing import Any

import torch
from torch import Tensor
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)

from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.data.batches import Batch
from holdfast_trainer.model.parts import ModelParts
from holdfast_trainer.model.stages import Stage
from holdfast_trainer.model.transformer import Transformer
from holdfast_trainer.parallel.mesh import Mesh
from holdfast_trainer.pipeline.bubble import make_meter
from holdfast_trainer.pipeline.cross_entropy import MeanLoss
from holdfast_trainer.pipeline.stage_tensors import like_logits, like_stream, like_tokens

_OF_ONE_STAGE = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
_OF_TWO_STAGES = {"interleaved-1f1b": ScheduleInterleaved1F1B, "zero-bubble": ScheduleZBVZeroBubble}
"""Name in ``parallel.schedule`` -> torch's class, for ranks with one stage and with two.

GPipe: Huang et al., 2019. 1F1B: Narayanan et al., "PipeDream", 2019. Interleaved: Narayanan et al., "Efficient
Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", 2021. Zero-bubble is ZB-V: Qi et al., "Zero
Bubble Pipeline Parallelism", 2023."""


class PipelineSchedule:
    """Runs this rank's stages in the order of ``parallel.schedule``."""

    def __init__(
        self, config: TrainerConfig, mesh: Mesh, parts: ModelParts, device: torch.device, loss: MeanLoss
    ) -> None:
        self._parts = parts
        stages = [
            _pipeline_stage(config, mesh, stage, module, device)
            for stage, module in zip(parts.stages, parts.modules, strict=True)
        ]
        self._meter = make_meter(stages, device)
        name, microbatches = config.parallel.schedule, config.parallel.microbatches
        # The loss of a microbatch is already its share of the global batch's mean (see MeanLoss). By default torch
        # would divide the gradients by the number of microbatches.
        self._schedule = (
            _OF_ONE_STAGE[name](stages[0], microbatches, loss_fn=loss, scale_grads=False)
            if name in _OF_ONE_STAGE
            else _OF_TWO_STAGES[name](stages, microbatches, loss_fn=loss, scale_grads=False)  # type: ignore[arg-type]
        )

    def run(self, batch: Batch) -> list[Tensor]:
        """Add the gradients of ``batch`` to the parameters'; return the losses, none without the last stage."""
        # Only the first stage takes tokens. All others receive activations from the stage before, inside of torch. The
        # first stage is always the first of its rank, also in a V, where that rank has the last stage too.
        inputs = (batch.inputs,) if self._parts.stages[0].is_first else ()
        # Every stage takes the documents of its microbatch. torch cuts them as it cuts the tokens.
        documents: dict[str, Any] = {} if batch.spans is None else {"spans": batch.spans}
        losses: list[Tensor] = []
        with self._meter.step():
            if self._parts.holds_last_stage:
                # Returned outputs would keep the logits of all microbatches in memory until the end of the step.
                self._schedule.step(*inputs, target=batch.targets, losses=losses, return_outputs=False, **documents)
            else:
                self._schedule.step(*inputs, **documents)
        return [loss.detach() for loss in losses]

    def bubble(self) -> float | None:
        """Return the idle share of this rank's stages in the newest step that the device has finished, 0 to 1."""
        return self._meter.share()


def _pipeline_stage(
    config: TrainerConfig, mesh: Mesh, stage: Stage, module: Transformer, device: torch.device
) -> PipelineStage:
    """Return torch's view of a stage of ours."""
    # With the shapes given, torch need not run every stage once, in the order of the pipeline, to find them out.
    return PipelineStage(
        module,
        stage.index,
        stage.count,
        device,
        input_args=like_tokens(config) if stage.is_first else like_stream(config),
        output_args=like_logits(config) if stage.is_last else like_stream(config),
        group=mesh.group("pp"),
    )
