"""The calls between ranks in a step, by purpose: the bytes that one rank sends, and the time that the links need."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.model.stages import Stage
from holdfast_trainer.planning.activations import microbatch_tokens
from holdfast_trainer.planning.collectives import LinkedRanks, Operation
from holdfast_trainer.planning.hardware import Cluster
from holdfast_trainer.planning.parameters import RankParameters
from holdfast_trainer.planning.pipeline_schedule import microbatches_in_flight
from holdfast_trainer.planning.state_memory import MASTER_BYTES, adds_up_whole_gradients, compute_bytes


@dataclass(frozen=True)
class Traffic:
    """The calls of one rank in a step for one purpose."""

    kind: str
    """``dp all-gather``, ``dp reduce-scatter``, ``dp all-reduce``, ``tp``, ``cp``, ``pp`` or ``ep``."""
    sent_bytes: float
    duration_s: float
    """Seconds that the links need for it, whether or not computation hides them."""
    calls: float = 0.0


@dataclass(frozen=True)
class _Calls:
    """Equal calls."""

    kind: str
    operation: Operation
    size: float
    """Bytes, as :meth:`LinkedRanks.sent_bytes` counts them."""
    number: float
    group: LinkedRanks


def step_traffic(
    config: TrainerConfig, cluster: Cluster, parameters: RankParameters, stages: Sequence[Stage], pp_index: int
) -> tuple[Traffic, ...]:
    """Return the traffic of pipeline rank ``pp_index`` in a step, without kinds that send nothing."""
    found: dict[str, Traffic] = {}
    for calls in (*_data_parallel(config, cluster, parameters, pp_index), *_model_parallel(config, cluster, stages)):
        sent_bytes = calls.number * calls.group.sent_bytes(calls.operation, calls.size)
        if sent_bytes > 0:
            what = calls.kind if calls.operation in calls.kind else f"{calls.kind} {calls.operation}"
            duration_s = calls.number * calls.group.duration_s(calls.operation, calls.size, what)
            before = found.get(calls.kind, Traffic(calls.kind, 0.0, 0.0))
            found[calls.kind] = Traffic(
                calls.kind, before.sent_bytes + sent_bytes, before.duration_s + duration_s, before.calls + calls.number
            )
    return tuple(found.values())


def _data_parallel(
    config: TrainerConfig, cluster: Cluster, parameters: RankParameters, pp_index: int
) -> Iterator[_Calls]:
    """Yield the calls for parameters and gradients: those of each block, and those of the rest of the model."""
    tp = config.parallel.tp
    gathers, reduces = gathers_in_step(config, pp_index), reduces_in_step(config)
    counted = [*((group, parameters.blocks) for group in parameters.block), (parameters.root, 1)]
    for group, times in counted:
        # The shards of experts are ep ranks apart, because ep is the inner part of the ranks that share state.
        is_of_experts = group.shards * group.replicas < config.parallel.dp * config.parallel.cp
        stride = tp * (config.parallel.ep if is_of_experts else 1)
        shards = cluster.group(size=group.shards, stride=stride)
        replicas = cluster.group(size=group.replicas, stride=stride * group.shards)
        weights, gradients = compute_bytes(config) * group.elements, MASTER_BYTES * group.elements
        yield _Calls("dp all-gather", "all-gather", weights, times * gathers, shards)
        yield _Calls("dp reduce-scatter", "reduce-scatter", gradients, times * reduces, shards)
        yield _Calls("dp all-reduce", "all-reduce", MASTER_BYTES * group.sharded_elements, times, replicas)


def gathers_in_step(config: TrainerConfig, pp_index: int) -> float:
    """Return how often each parameter is gathered in a step."""
    parallel = config.parallel
    if parallel.zero < 3:
        return 1
    if parallel.pp == 1:
        return 2 * parallel.microbatches
    # torch's schedules keep what a backward pass has gathered for the next forward pass.
    return parallel.microbatches + microbatches_in_flight(parallel, pp_index)


def reduces_in_step(config: TrainerConfig) -> int:
    """Return how often each gradient is reduced in a step."""
    return 1 if adds_up_whole_gradients(config) else config.parallel.microbatches


def _stream_bytes(config: TrainerConfig) -> int:
    """Return the bytes of the residual stream of one microbatch, not sharded over tp."""
    return microbatch_tokens(config) * config.model.dim * compute_bytes(config)


def _block_passes(config: TrainerConfig, stages: Sequence[Stage]) -> int:
    return config.parallel.microbatches * sum(len(stage.layers) for stage in stages)


def _model_parallel(config: TrainerConfig, cluster: Cluster, stages: Sequence[Stage]) -> Iterator[_Calls]:
    """Yield the calls of tp, cp, pp and ep."""
    parallel, model = config.parallel, config.model
    stream, passes = _stream_bytes(config), _block_passes(config, stages)
    checkpointing = config.memory.checkpointing
    # Attention and feed-forward gather their input and reduce-scatter their output, in both passes. Without sequence
    # parallelism they all-reduce instead, half as often, which sends the same number of bytes.
    again = {"none": 0, "selective": 2, "full": 4}[checkpointing]
    operation: Operation = "all-gather" if parallel.sequence_parallel else "all-reduce"
    halves = 1 if parallel.sequence_parallel else 2
    tensor = cluster.group(size=parallel.tp, stride=1)
    yield _Calls("tp", operation, stream, (8 + again) * passes / halves, tensor)
    # Keys and values are gathered over the sequence, and their gradients reduce-scattered.
    ours = microbatch_tokens(config) * 2 * model.kv_heads * model.head_width / parallel.tp * compute_bytes(config)
    context = cluster.group(size=parallel.cp, stride=parallel.tp)
    yield _Calls("cp", "all-gather", parallel.cp * ours, (2 if checkpointing == "none" else 3) * passes, context)
    # The stream of each microbatch goes to the next stage, and its gradient to the stage before.
    if parallel.pp > 1:
        sends = sum(int(not stage.is_last) + int(not stage.is_first) for stage in stages)
        between = cluster.group(size=2, stride=parallel.tp * parallel.cp * parallel.dp)
        cut = parallel.tp if parallel.sequence_parallel else 1
        yield _Calls("pp", "send", stream / cut, sends * parallel.microbatches, between)
    # Each token travels to its experts and back, and so do the gradients.
    experts = cluster.group(size=parallel.ep, stride=parallel.tp)
    trips = 6 if checkpointing == "full" else 4
    yield _Calls("ep", "all-to-all", model.experts_per_token * stream, trips * passes, experts)
