"""Forward passes alone, stage after stage, for evaluation.

torch's schedules with two stages a rank can only run forward together with backward, so this is one way for all of
them: each stage works off all microbatches before the next one of the same rank begins, so ranks overlap.
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
    """Passes microbatches through this rank's stages, and on to the ranks of the next ones."""

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
        """Return the losses of the microbatches, none without the last stage."""
        inputs, targets = (whole.chunk(self._microbatches) for whole in (batch.inputs, batch.targets))
        streams = list(inputs)
        sends: list[dist.Work | None] = []
        for stage, module in zip(self._parts.stages, self._parts.modules, strict=True):
            source, target = self._neighbour(stage, -1), self._neighbour(stage, +1)
            # Two ranks that send both ways at once would wait for each other: NCCL keeps to the order of calls.
            sends_at_once = source is None or source != target
            for index in range(self._microbatches):
                streams[index] = module(streams[index] if source is None else self._receive(source))
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
        """Return the other rank that holds the stage before (-1) or after (+1) ``stage``."""
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
