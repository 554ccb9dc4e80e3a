"""The rules between settings, which the type of each value cannot express.

Every problem is one line that names the settings and the fix. Nothing here needs torch or another rank.
"""

from collections.abc import Iterator
from typing import Protocol

from holdfast_trainer.config_sections import (
    DataConfig,
    DistributedConfig,
    MemoryConfig,
    ModelConfig,
    ParallelConfig,
    PrecisionConfig,
    TrainConfig,
)
from holdfast_trainer.weights import llama_config


class Sections(Protocol):
    """The sections of a configuration between which there are rules."""

    model: ModelConfig
    parallel: ParallelConfig
    precision: PrecisionConfig
    memory: MemoryConfig
    data: DataConfig
    train: TrainConfig
    distributed: DistributedConfig


def problems(config: Sections) -> list[str]:
    """Return one line for each rule that ``config`` breaks."""
    return [line for rule in _RULES for line in rule(config)]


def _divides(divisor_key: str, divisor: int, key: str, value: int) -> Iterator[str]:
    if value % divisor:
        yield f"{key} is {value}, which {divisor_key} = {divisor} does not divide: change {key} or {divisor_key}"


def _model(config: Sections) -> Iterator[str]:
    model = config.model
    found = [
        *_divides("model.heads", model.heads, "model.dim", model.dim),
        *_divides("model.kv_heads", model.kv_heads, "model.heads", model.heads),
    ]
    yield from found
    width = model.head_width
    if not found and width % 2:
        name = "model.head_dim" if model.head_dim else "model.dim / model.heads"
        fix = "change it" if model.head_dim else "change model.dim or model.heads"
        yield f"{name} is {width}, but rotary heads have an even width: {fix}"
    if model.rope_scaling == "llama3" and model.rope_low_frequency >= model.rope_high_frequency:
        yield (
            f"model.rope_low_frequency is {model.rope_low_frequency}, not below model.rope_high_frequency = "
            f"{model.rope_high_frequency}: change either"
        )
    if config.data.tokenizer == "bytes" and model.vocabulary < 256 and not _is_token_file(config):
        yield f"model.vocabulary is {model.vocabulary}, too small for 256 byte values: raise it to 256"


def _weights(config: Sections) -> Iterator[str]:
    if config.model.init_from:
        yield from llama_config.differences(config.model)


def _is_token_file(config: Sections) -> bool:
    return config.data.source.endswith((".bin", ".npy"))


def _experts(config: Sections) -> Iterator[str]:
    model, parallel = config.model, config.parallel
    if model.experts and model.experts_per_token > model.experts:
        yield (
            f"model.experts_per_token is {model.experts_per_token}, but there are {model.experts} experts: "
            "lower model.experts_per_token"
        )
    if parallel.ep > 1 and not model.experts:
        yield f"parallel.ep is {parallel.ep}, but the model has no experts: set model.experts or parallel.ep = 1"
        return
    yield from _divides("parallel.ep", parallel.ep, "model.experts", model.experts)
    yield from _divides("parallel.ep", parallel.ep, "parallel.dp_shard x parallel.cp", _shard_ranks(config))


def _shard_ranks(config: Sections) -> int:
    parallel = config.parallel
    # At ZeRO 0 every data-parallel rank has all experts, and may drop its copy of some of them.
    return (parallel.dp if parallel.zero == 0 else parallel.shards) * parallel.cp


def _data_parallel(config: Sections) -> Iterator[str]:
    parallel = config.parallel
    if parallel.zero == 0 and parallel.dp_shard > 1:
        yield f"parallel.zero is 0, which shards nothing, but parallel.dp_shard is {parallel.dp_shard}: change either"
    elif parallel.dp_shard:
        yield from _divides("parallel.dp_shard", parallel.dp_shard, "parallel.dp", parallel.dp)


def _tensor_parallel(config: Sections) -> Iterator[str]:
    model, parallel = config.model, config.parallel
    for key in ("heads", "kv_heads", "hidden", "vocabulary"):
        yield from _divides("parallel.tp", parallel.tp, f"model.{key}", getattr(model, key))
    local_sequence = config.data.sequence // parallel.cp
    if parallel.sequence_parallel and local_sequence % parallel.tp:
        yield (
            f"data.sequence / parallel.cp is {local_sequence}, which parallel.tp = {parallel.tp} does not divide: "
            "change data.sequence or set parallel.sequence_parallel = false"
        )


def _context_parallel(config: Sections) -> Iterator[str]:
    cp = config.parallel.cp
    if cp > 1:
        yield from _divides("2 x parallel.cp", 2 * cp, "data.sequence", config.data.sequence)


def _pipeline(config: Sections) -> Iterator[str]:
    model, parallel = config.model, config.parallel
    stages = parallel.pp * parallel.stages_per_rank
    if model.layers < stages:
        yield (
            f"model.layers is {model.layers}, too few for {stages} pipeline stages (parallel.pp = {parallel.pp}, "
            f"{parallel.stages_per_rank} each under {parallel.schedule}): change model.layers or parallel.pp"
        )
    if parallel.microbatches < parallel.pp:
        yield (
            f"parallel.microbatches is {parallel.microbatches}, but {parallel.pp} pipeline ranks need as many: "
            "raise parallel.microbatches"
        )
    if parallel.schedule == "interleaved-1f1b" and parallel.pp > 1:
        yield from _divides("parallel.pp", parallel.pp, "parallel.microbatches", parallel.microbatches)
    if parallel.schedule == "zero-bubble" and parallel.pp > 1:
        yield from _split_backward(config)
    if model.tied and parallel.pp > 1:
        yield "model.tied needs embedding and head on one stage: set model.tied = false or parallel.pp = 1"


def _split_backward(config: Sections) -> Iterator[str]:
    refusal = "needs a backward pass in one piece, but parallel.schedule = zero-bubble splits it"
    if config.memory.compile:
        yield f"memory.compile {refusal}: set memory.compile = false or change parallel.schedule"
    if config.memory.checkpointing == "selective":
        yield f'memory.checkpointing = selective {refusal}: set it to "full" or change parallel.schedule'


def _documents(config: Sections) -> Iterator[str]:
    end = config.data.document_end
    if end is not None and end >= config.model.vocabulary:
        yield (
            f"data.document_end is {end}, but model.vocabulary is {config.model.vocabulary}: "
            "give an id that the model knows"
        )


def _batch(config: Sections) -> Iterator[str]:
    parallel, batch = config.parallel, config.train.global_batch
    if batch % (parallel.dp * parallel.microbatches):
        yield (
            f"train.global_batch is {batch}, not a multiple of parallel.dp x parallel.microbatches = "
            f"{parallel.dp * parallel.microbatches}: change train.global_batch"
        )


def _precision(config: Sections) -> Iterator[str]:
    if config.precision.fp8 and config.precision.compute != "bf16":
        yield (
            f"precision.fp8 rounds bf16 activations, but precision.compute is {config.precision.compute}: "
            'set precision.compute = "bf16"'
        )
    if config.precision.fp8 and config.distributed.device == "cpu":
        yield 'precision.fp8 needs a GPU, but distributed.device is "cpu": change either'


_RULES = (
    _model,
    _weights,
    _experts,
    _data_parallel,
    _tensor_parallel,
    _context_parallel,
    _pipeline,
    _documents,
    _batch,
    _precision,
)
