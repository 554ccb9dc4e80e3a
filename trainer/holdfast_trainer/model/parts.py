"""The parts of the model that one rank holds: one, or two where the pipeline schedule interleaves stages."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from holdfast_trainer.model.stages import Stage
from holdfast_trainer.model.transformer import Transformer


@dataclass(frozen=True)
class ModelParts:
    """One module per stage. Names of parameters mean the same in all of them, so they can be told as one model."""

    stages: tuple[Stage, ...]
    modules: tuple[Transformer, ...]

    @property
    def holds_last_stage(self) -> bool:
        """Whether this rank computes the loss."""
        return any(stage.is_last for stage in self.stages)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters with their names, stage after stage."""
        for module in self.modules:
            yield from module.named_parameters()

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters, stage after stage."""
        return [parameter for _, parameter in self.named_parameters()]
