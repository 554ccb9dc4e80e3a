"""The plan of one layout: memory, communication and time."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from holdfast_trainer import flops
from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.model.stages import Stage, stage_layers, stage_ranks
from holdfast_trainer.planning.activations import rank_activations
from holdfast_trainer.planning.communication import Traffic, step_traffic
from holdfast_trainer.planning.hardware import Cluster
from holdfast_trainer.planning.parameters import rank_parameters
from holdfast_trainer.planning.pipeline_schedule import bubble_share
from holdfast_trainer.planning.state_memory import StateMemory, state_memory
from holdfast_trainer.planning.step_time import StepTime, step_time

USABLE_MEMORY = 0.9
"""Share of a GPU's memory for what the plan counts. CUDA, NCCL and fragmentation take the rest."""

Places = Sequence[Sequence[Stage]]
"""Stages of the ranks at each place of the pipeline."""


@dataclass(frozen=True)
class PlannedMemory:
    """The memory of each rank at one place of the pipeline, in bytes on the device."""

    pp_index: int
    state: StateMemory
    activations: float

    @property
    def total(self) -> float:
        """Sum of all parts, as if all were at their largest at the same moment."""
        state = self.state
        kept = state.parameters + state.gradients + state.optimizer
        return kept + state.gathered + state.buffers + self.activations


@dataclass(frozen=True)
class Plan:
    """The needs and costs of a layout."""

    config: TrainerConfig
    memory: tuple[PlannedMemory, ...]
    """Memory of the ranks at each place of the pipeline. All ranks of a place need the same."""
    bubble_share: float
    slowest: int
    """Place of the pipeline with the longest step. Traffic and time are those of this place."""
    traffic: tuple[Traffic, ...]
    time: StepTime
    mfu: float
    """Model's operations as a share of the peak of all GPUs, from 0 to 1."""

    @property
    def largest(self) -> PlannedMemory:
        """Memory at the place of the pipeline that needs the most."""
        return largest(self.memory)


def pipeline_places(config: TrainerConfig) -> Places:
    """Return the stages at each place of the pipeline."""
    ranks, layers = stage_ranks(config.parallel), stage_layers(config)
    stages = [Stage(index, len(ranks), held) for index, held in enumerate(layers)]
    return [
        [stage for stage, rank in zip(stages, ranks, strict=True) if rank == pp_index]
        for pp_index in range(config.parallel.pp)
    ]


def memory_plan(config: TrainerConfig, places: Places) -> tuple[PlannedMemory, ...]:
    """Return the memory of the ranks at each place of the pipeline."""
    return tuple(
        PlannedMemory(
            pp_index,
            state_memory(config, rank_parameters(config, stages)),
            rank_activations(config, stages, pp_index),
        )
        for pp_index, stages in enumerate(places)
    )


@dataclass(frozen=True)
class PrecisionNeeds:
    """The needs of the largest rank of a layout in one precision."""

    precision: str
    """``fp32``, ``bf16`` or ``fp8``, with fp32 master weights and optimizer state in all three."""
    state_bytes: float
    activation_bytes: Mapping[str, float]
    """Activation checkpointing (``none``, ``selective``, ``full``) -> bytes."""
    compute_s: float | None
    """Seconds of computation of the slowest rank; None: the GPU has no unit for it, or its peak is not known."""


def by_precision(config: TrainerConfig, cluster: Cluster) -> Iterator[PrecisionNeeds]:
    """Yield the needs of a layout in each precision. fp8 is for matrix products alone: it saves time, not memory."""
    places = pipeline_places(config)
    for name, changes in _PRECISIONS.items():
        other = config.model_copy(update={"precision": config.precision.model_copy(update=changes)})
        kept = {
            checkpointing: largest(memory_plan(_with_checkpointing(other, checkpointing), places))
            for checkpointing in ("none", "selective", "full")
        }
        rank = kept[config.memory.checkpointing]
        compute_s = None
        if not cluster.peak_tflops or other.precision == config.precision:  # one's own peak is of one data type
            with contextlib.suppress(ValueError):
                compute_s = make_plan(other, cluster, places).time.compute_s
        activations = {checkpointing: memory.activations for checkpointing, memory in kept.items()}
        yield PrecisionNeeds(name, rank.total - rank.activations, activations, compute_s)


_PRECISIONS: Mapping[str, Mapping[str, object]] = {
    "fp32": {"compute": "fp32", "fp8": False},
    "bf16": {"compute": "bf16", "fp8": False},
    "fp8": {"compute": "bf16", "fp8": True},
}


def _with_checkpointing(config: TrainerConfig, checkpointing: str) -> TrainerConfig:
    return config.model_copy(update={"memory": config.memory.model_copy(update={"checkpointing": checkpointing})})


def largest(memory: Sequence[PlannedMemory]) -> PlannedMemory:
    """Return the memory of the place that needs the most."""
    return max(memory, key=lambda rank: rank.total)


def fits(memory: Sequence[PlannedMemory], cluster: Cluster) -> bool:
    """Return whether the rank with the largest need fits in the memory of a GPU."""
    return largest(memory).total <= USABLE_MEMORY * cluster.gpu.memory_bytes


def make_plan(config: TrainerConfig, cluster: Cluster, places: Places) -> Plan:
    """Return the plan of ``config``, whose pipeline has these ``places``, on ``cluster``.

    Raises ValueError if the GPU has no units for the configuration's data type.
    """
    costs = [place_cost(config, cluster, stages, pp_index) for pp_index, stages in enumerate(places)]
    slowest = max(range(len(costs)), key=lambda index: costs[index][1].total_s)
    traffic, time = costs[slowest]
    tokens_per_s = config.train.global_batch * config.data.sequence / time.total_s
    return Plan(
        config=config,
        memory=memory_plan(config, places),
        bubble_share=bubble_share(config.parallel),
        slowest=slowest,
        traffic=traffic,
        time=time,
        mfu=flops.mfu(
            tokens_per_s,
            flops_per_token=flops.flops_per_token(config.model, sequence=config.data.sequence),
            peak_flops_per_s=cluster.peak_flops_per_s(config.precision) * config.parallel.ranks,
        ),
    )


def place_cost(
    config: TrainerConfig, cluster: Cluster, stages: Sequence[Stage], pp_index: int
) -> tuple[tuple[Traffic, ...], StepTime]:
    """Return traffic and time of a rank at one place of the pipeline. Raises ValueError as :func:`make_plan` does."""
    parameters = rank_parameters(config, stages)
    traffic = step_traffic(config, cluster, parameters, stages, pp_index)
    return traffic, step_time(config, cluster, stages, parameters, traffic, pp_index=pp_index)
