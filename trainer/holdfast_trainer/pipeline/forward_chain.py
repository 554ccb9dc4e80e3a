"""Forward passes without backward passes, stage after stage, for evaluation.

torch's schedules with two stages on a rank cannot run forward passes alone. So evaluation has one way for all
schedules: a stage computes all microbatches before the next stage of the same rank begins. Different ranks overlap.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.data.batches import Batch
from holdfast_trainer.model.parts import ModelParts
from holdfast_trainer.model.stages import Stage, stage_ranks
from holdfast_trainer.parallel.mesh import Mesh
from holdfast_trainer.pipeline.cross_entropy import MeanLoss
from holdfast_trainer.pipeline.stage_tensors import like_stream


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
