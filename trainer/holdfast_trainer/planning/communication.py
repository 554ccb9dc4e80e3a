"""The bytes that one rank sends in a step, by purpose, and the time that the links need for them."""

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.model.stages import Stage
from holdfast_trainer.planning.activations import microbatch_tokens
from holdfast_trainer.planning.hardware import Cluster
from holdfast_trainer.planning.parameters import ParameterGroup, RankParameters
from holdfast_trainer.planning.pipeline_schedule import microbatches_in_flight
from holdfast_trainer.planning.state_memory import MASTER_BYTES, adds_up_whole_gradients, compute_bytes

LINK_EFFICIENCY = 0.8
"""Share of a link's rate that large collectives reach."""


@dataclass(frozen=True)
class Traffic:
    """The bytes that one rank sends in a step for one purpose."""

    kind: str
    """``dp all-gather``, ``dp reduce-scatter``, ``dp all-reduce``, ``tp``, ``cp``, ``pp`` or ``ep``."""
    sent_bytes: float
    duration_s: float
    """Seconds that the links need for it, whether or not computation hides them."""


def step_traffic(
    config: TrainerConfig, cluster: Cluster, parameters: RankParameters, stages: Sequence[Stage], pp_index: int
) -> tuple[Traffic, ...]:
    """Return the traffic of pipeline rank ``pp_index`` in a step, without kinds that send nothing.

    Collectives count as rings. All-gather and reduce-scatter of B bytes over n ranks send (n - 1) / n B, and an
    all-reduce sends twice that.
    """
    parallel = config.parallel
    inner = {"tp": 1, "cp": parallel.tp, "ep": parallel.tp, "pp": parallel.tp * parallel.cp * parallel.dp}
    sizes = {"tp": parallel.tp, "cp": parallel.cp, "ep": parallel.ep, "pp": 2 * (parallel.pp > 1)}
    volumes = {
        "tp": _tensor_parallel_bytes(config, stages),
        "cp": _context_parallel_bytes(config, stages),
        "pp": _pipeline_bytes(config, stages),
        "ep": _expert_parallel_bytes(config, stages),
    }
    found = [*_data_parallel(config, cluster, parameters, pp_index)]
    for kind, sent in volumes.items():
        rate = cluster.group_bytes_per_s(size=sizes[kind], stride=inner[kind])
        found.append(_traffic(kind, sent, rate))
    return tuple(traffic for traffic in found if traffic.sent_bytes > 0)


def _traffic(kind: str, sent_bytes: float, bytes_per_s: float) -> Traffic:
    return Traffic(kind, sent_bytes, sent_bytes / (bytes_per_s * LINK_EFFICIENCY))


def _data_parallel(
    config: TrainerConfig, cluster: Cluster, parameters: RankParameters, pp_index: int
) -> tuple[Traffic, Traffic, Traffic]:
    tp = config.parallel.tp
    gathers, reduces = _gathers(config, pp_index), _reduces(config)
    totals = {"dp all-gather": (0.0, 0.0), "dp reduce-scatter": (0.0, 0.0), "dp all-reduce": (0.0, 0.0)}

    def add(kind: str, sent: float, *, size: int, stride: int) -> None:
        traffic = _traffic(kind, sent, cluster.group_bytes_per_s(size=size, stride=stride))
        before_bytes, before_s = totals[kind]
        totals[kind] = (before_bytes + traffic.sent_bytes, before_s + traffic.duration_s)

    counted = [*((group, parameters.blocks) for group in parameters.block), (parameters.root, 1)]
    for group, times in counted:
        # The shards of experts are ep ranks apart, because ep is the inner part of the ranks that share state.
        is_of_experts = group.shards * group.replicas < config.parallel.dp * config.parallel.cp
        stride = tp * (config.parallel.ep if is_of_experts else 1)
        ring = times * _ring(group.shards) * group.elements
        add("dp all-gather", gathers * compute_bytes(config) * ring, size=group.shards, stride=stride)
        add("dp reduce-scatter", reduces * MASTER_BYTES * ring, size=group.shards, stride=stride)
        add("dp all-reduce", times * _all_reduce_bytes(group), size=group.replicas, stride=stride * group.shards)
    gather, scatter, reduce = (Traffic(kind, *total) for kind, total in totals.items())
    return gather, scatter, reduce


def _ring(ranks: int) -> float:
    return (ranks - 1) / ranks


def _all_reduce_bytes(group: ParameterGroup) -> float:
    return 2 * _ring(group.replicas) * MASTER_BYTES * group.sharded_elements


def _gathers(config: TrainerConfig, pp_index: int) -> float:
    parallel = config.parallel
    if parallel.zero < 3:
        return 1
    if parallel.pp == 1:
        return 2 * parallel.microbatches
    # torch's schedules keep what a backward pass has gathered for the next forward pass.
    return parallel.microbatches + microbatches_in_flight(parallel, pp_index)


def _reduces(config: TrainerConfig) -> int:
    return 1 if adds_up_whole_gradients(config) else config.parallel.microbatches


def _stream_bytes(config: TrainerConfig) -> int:
    """Return the bytes of the residual stream of one microbatch, not sharded over tp."""
    return microbatch_tokens(config) * config.model.dim * compute_bytes(config)


def _block_passes(config: TrainerConfig, stages: Sequence[Stage]) -> int:
    return config.parallel.microbatches * sum(len(stage.layers) for stage in stages)


def _tensor_parallel_bytes(config: TrainerConfig, stages: Sequence[Stage]) -> float:
    """Return what tp sends: attention and feed-forward gather their input and reduce-scatter their output, both ways.

    Without sequence parallelism they all-reduce instead, which sends the same number of bytes.
    """
    again = {"none": 0, "selective": 2, "full": 4}[config.memory.checkpointing]
    return (8 + again) * _ring(config.parallel.tp) * _stream_bytes(config) * _block_passes(config, stages)


def _context_parallel_bytes(config: TrainerConfig, stages: Sequence[Stage]) -> float:
    """Return what cp sends: it gathers keys and values over the sequence, and reduce-scatters their gradients."""
    model, parallel = config.model, config.parallel
    passes = 3 if config.memory.checkpointing != "none" else 2
    ours = microbatch_tokens(config) * 2 * model.kv_heads * model.head_width / parallel.tp
    return passes * (parallel.cp - 1) * ours * compute_bytes(config) * _block_passes(config, stages)


def _pipeline_bytes(config: TrainerConfig, stages: Sequence[Stage]) -> float:
    """Return what pp sends: the stream of each microbatch to the next stage, and its gradient to the stage before."""
    parallel = config.parallel
    cut = parallel.tp if parallel.sequence_parallel else 1
    sends = sum(int(not stage.is_last) + int(not stage.is_first) for stage in stages)
    return sends * parallel.microbatches * _stream_bytes(config) / cut


def _expert_parallel_bytes(config: TrainerConfig, stages: Sequence[Stage]) -> float:
    """Return what ep sends: each token travels to its experts and back, and so do the gradients."""
    passes = 6 if config.memory.checkpointing == "full" else 4
    copies = config.model.experts_per_token * _ring(config.parallel.ep)
    return passes * copies * _stream_bytes(config) * _block_passes(config, stages)
