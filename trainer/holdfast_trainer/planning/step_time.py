"""The duration of a step: computation, communication that it does not hide, the bubble, and the optimizer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.model.stages import Stage, block_cost, head_cost
from holdfast_trainer.planning.activations import microbatch_tokens
from holdfast_trainer.planning.communication import Traffic, gathers_in_step, reduces_in_step
from holdfast_trainer.planning.formulas import Formula
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

_COMPUTATION = Formula("computation", "s", "(3 + recomputed) * forward_flop / (peak * efficiency)")
_BUBBLE = Formula("bubble", "s", "busy_s * idle / (1 - idle)")
_OPTIMIZER = Formula("optimizer", "s", f"{_OPTIMIZER_BYTES} * parameters / memory_rate")
_STEP_OFFLOAD = Formula("offload of the optimizer", "s", "2 * 4 * parameters / host_rate")
_STATE_OFFLOAD = Formula("offload of the parameters", "s", "max(0, gathers * 4 * parameters / host_rate - compute_s)")


@dataclass(frozen=True)
class StepTime:
    """The parts of one step on one rank, in seconds. Their sum is the duration of the step."""

    compute_s: float
    communication_s: float
    """Seconds that computation waits: for all of tp, cp, ep and pp, and for the part of dp that it does not hide."""
    bubble_s: float
    optimizer_s: float
    offload_s: float
    """Seconds that a rank waits for copies between GPU and host."""

    @property
    def total_s(self) -> float:
        """Seconds of the whole step."""
        return self.compute_s + self.communication_s + self.bubble_s + self.optimizer_s + self.offload_s


def step_time(
    config: TrainerConfig,
    cluster: Cluster,
    stages: Sequence[Stage],
    parameters: RankParameters,
    traffic: Sequence[Traffic],
    *,
    pp_index: int,
) -> StepTime:
    """Return the time of a step if every pipeline rank is as slow as this one.

    Raises ValueError if the GPU has no unit for the data type of the configuration.
    """
    compute_s = _COMPUTATION(
        recomputed=RECOMPUTATION[config.memory.checkpointing],
        forward_flop=_forward_flops(config, stages),
        peak=cluster.peak_flops_per_s(config.precision),
        efficiency=COMPUTE_EFFICIENCY,
    )
    durations = {part.kind: part.duration_s for part in traffic}
    inside_s = sum(durations.get(kind, 0.0) for kind in ("tp", "cp", "ep", "pp"))
    on_host = config.memory.offload != "none"  # there the optimizer steps, too
    memory_rate = cluster.host_memory_bytes_per_s if on_host else cluster.gpu.memory_bytes_per_s
    return StepTime(
        compute_s=compute_s,
        communication_s=inside_s + _exposed_data_parallel_s(config, durations, compute_s),
        bubble_s=_BUBBLE(busy_s=compute_s + inside_s, idle=bubble_share(config.parallel)),
        optimizer_s=_OPTIMIZER(parameters=parameters.sharded_elements, memory_rate=memory_rate),
        offload_s=_offload_s(config, cluster, parameters, compute_s, pp_index),
    )


def _offload_s(
    config: TrainerConfig, cluster: Cluster, parameters: RankParameters, compute_s: float, pp_index: int
) -> float:
    """Return the seconds of copies that nothing hides.

    With the optimizer on the host, the reduced gradients go there before its step, and new parameters come back after
    it (Ren et al., "ZeRO-Offload: Democratizing Billion-Scale Model Training", 2021). With all state on the host, each
    gather brings the shards first, while the GPU computes; gradients go the other way at the same time.
    """
    numbers = {"parameters": parameters.sharded_elements, "host_rate": cluster.host_bytes_per_s}
    if config.memory.offload == "optimizer":
        return _STEP_OFFLOAD(**numbers)
    if config.memory.offload == "parameters":
        copies = max(gathers_in_step(config, pp_index), reduces_in_step(config))
        return _STATE_OFFLOAD(gathers=copies, compute_s=compute_s, **numbers)
    return 0.0


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
