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
# Per backward pass: what runs during each of them, and what runs during the last one.
_EXPOSED = Formula(
    "dp calls that nothing hides",
    "s",
    "max(0, gather_s - forward_s) + max(0, again_s + scatter_s + reduce_s - reduced_passes * backward_s,"
    " (again_s + scatter_s) / reduced_passes + reduce_s - backward_s)",
)
_EXPOSED_IN_PIPELINE = Formula("dp calls that nothing hides", "s", "max(0, gather_s - cover_s) + scatter_s + reduce_s")
_WAITING = Formula("waiting for links", "s", "tp_cp_ep_pp_s + exposed_dp_s")
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
        communication_s=_WAITING(
            tp_cp_ep_pp_s=inside_s, exposed_dp_s=_exposed_data_parallel_s(config, durations, compute_s)
        ),
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

    The calls share their links, so that a pass hides the sum of what runs during it. All-gathers run during the passes
    that need the parameters: at ZeRO 3 half of them during forward passes, else all before the first one. Reductions
    run during backward passes: at ZeRO 2 and 3 during each, else during the last one. A pipeline schedule reduces after
    its last backward pass, where nothing hides it.
    """
    parallel = config.parallel
    gather_s = durations.get("dp all-gather", 0.0)
    scatter_s, reduce_s = durations.get("dp reduce-scatter", 0.0), durations.get("dp all-reduce", 0.0)
    forward_s = compute_s / (3 + RECOMPUTATION[config.memory.checkpointing])
    backward_s = compute_s - forward_s
    if parallel.pp > 1:
        cover_s = compute_s if parallel.zero == 3 else forward_s / parallel.microbatches
        return _EXPOSED_IN_PIPELINE(gather_s=gather_s, cover_s=cover_s, scatter_s=scatter_s, reduce_s=reduce_s)
    is_whole = parallel.zero == 3
    return _EXPOSED(
        gather_s=gather_s / 2 if is_whole else gather_s,
        forward_s=forward_s if is_whole else forward_s / parallel.microbatches,
        again_s=gather_s / 2 if is_whole else 0.0,
        scatter_s=scatter_s,
        reduce_s=reduce_s,
        reduced_passes=parallel.microbatches if parallel.zero >= 2 else 1,
        backward_s=backward_s / parallel.microbatches,
    )
