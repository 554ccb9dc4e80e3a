"""The duration of a step: computation, communication that it does not hide, the bubble, and the optimizer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.model.stages import Stage, block_cost, head_cost
from holdfast_trainer.planning.activations import microbatch_tokens
from holdfast_trainer.planning.communication import Traffic
from holdfast_trainer.planning.hardware import Cluster
from holdfast_trainer.planning.parameters import RankParameters
from holdfast_trainer.planning.pipeline_schedule import bubble_share

COMPUTE_EFFICIENCY = 0.6
"""Share of the peak that a block reaches while it computes, including norms and similar operations."""

RECOMPUTATION = {"none": 0.0, "selective": 0.1, "full": 1.0}
"""Share of the forward pass that is computed twice: all, or norms, rotation and SiLU, which memory limits."""

_FLOPS_PER_MULTIPLY_ADD = 2
_OPTIMIZER_BYTES = 28
"""Bytes read and written for each of Adam's parameters: master weight and moments both ways, the gradient one way."""


@dataclass(frozen=True)
class StepTime:
    """The parts of one step on one rank, in seconds. Their sum is the duration of the step."""

    compute_s: float
    communication_s: float
    """Seconds that computation waits: for all of tp, cp, ep and pp, and for the part of dp that it does not hide."""
    bubble_s: float
    optimizer_s: float

    @property
    def total_s(self) -> float:
        """Seconds of the whole step."""
        return self.compute_s + self.communication_s + self.bubble_s + self.optimizer_s


def step_time(
    config: TrainerConfig,
    cluster: Cluster,
    stages: Sequence[Stage],
    parameters: RankParameters,
    traffic: Sequence[Traffic],
) -> StepTime:
    """Return the time of a step if every pipeline rank is as slow as this one.

    Raises ValueError if the GPU has no unit for the data type of the configuration.
    """
    compute_s = _forward_flops(config, stages) * (3 + RECOMPUTATION[config.memory.checkpointing])
    compute_s /= cluster.peak_flops_per_s(config.precision) * COMPUTE_EFFICIENCY
    durations = {part.kind: part.duration_s for part in traffic}
    inside_s = sum(durations.get(kind, 0.0) for kind in ("tp", "cp", "ep", "pp"))
    idle = bubble_share(config.parallel)
    return StepTime(
        compute_s=compute_s,
        communication_s=inside_s + _exposed_data_parallel_s(config, durations, compute_s),
        bubble_s=(compute_s + inside_s) * idle / (1 - idle),
        optimizer_s=_OPTIMIZER_BYTES * parameters.sharded_elements / cluster.gpu.memory_bytes_per_s,
    )


def _forward_flops(config: TrainerConfig, stages: Sequence[Stage]) -> float:
    multiply_adds = sum(len(stage.layers) for stage in stages) * block_cost(config.model, config.data.sequence)
    if any(stage.is_last for stage in stages):
        multiply_adds += head_cost(config.model)
    tokens = microbatch_tokens(config) * config.parallel.microbatches
    return tokens * multiply_adds * _FLOPS_PER_MULTIPLY_ADD / config.parallel.tp


def _exposed_data_parallel_s(config: TrainerConfig, durations: Mapping[str, float], compute_s: float) -> float:
    """Return the seconds of data-parallel communication that computation does not hide.

    All-gathers hide behind the passes that need the parameters. Reductions hide behind the backward passes that compute
    the gradients, but a pipeline schedule reduces after its last backward pass: nothing hides that.
    """
    parallel = config.parallel
    gather_s = durations.get("dp all-gather", 0.0)
    scatter_s, reduce_s = durations.get("dp reduce-scatter", 0.0), durations.get("dp all-reduce", 0.0)
    microbatch_s = compute_s / parallel.microbatches
    last_backward_s = 0.0 if parallel.pp > 1 else microbatch_s * 2 / 3
    hidden_gather_s = compute_s if parallel.zero == 3 else microbatch_s / 3
    hidden_scatter_s = last_backward_s * (parallel.microbatches if parallel.zero >= 2 else 1)
    return (
        max(0.0, gather_s - hidden_gather_s)
        + max(0.0, scatter_s - hidden_scatter_s)
        + max(0.0, reduce_s - last_backward_s)
    )
