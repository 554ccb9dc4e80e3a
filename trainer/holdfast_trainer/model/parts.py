"""The parts of the model that one rank holds: one, or two if the schedule gives each rank two stages."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from holdfast_trainer.model.stages import Stage
from holdfast_trainer.model.transformer import Transformer


@dataclass(frozen=True)
class ModelParts:
    """Holds one module for each stage. Parameters keep their names in the whole model, so no name occurs twice."""

    stages: tuple[Stage, ...]
    modules: tuple[Transformer, ...]

    @property
    def holds_last_stage(self) -> bool:
        """Whether this rank has the last stage, which computes the loss."""
        return any(stage.is_last for stage in self.stages)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters with their names, in the order of the stages."""
        for module in self.modules:
            yield from module.named_parameters()

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters, in the order of the stages."""
        return [parameter for _, parameter in self.named_parameters()]
