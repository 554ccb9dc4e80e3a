"""The part of a configuration that a dry run tries: as little as is needed to see all of its shapes."""

from dataclasses import replace

from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.model.stages import Stage, held_stages

_BLOCKS = 2
"""Number of blocks on a rank. All have the same shapes. There are two, to try the border between blocks as well."""


def reduced(config: TrainerConfig) -> TrainerConfig:
    """Return the configuration with few microbatches of the same size, and without settings that cannot be tried."""
    parallel = config.parallel
    microbatches = min(parallel.microbatches, max(2, parallel.pp))
    global_batch = config.train.global_batch // parallel.microbatches * microbatches
    changes = {
        "parallel": parallel.model_copy(update={"microbatches": microbatches}),
        "train": config.train.model_copy(update={"global_batch": global_batch}),
        "precision": config.precision.model_copy(update={"fp8": False}),
        "memory": config.memory.model_copy(update={"compile": False}),
    }
    return config.model_copy(update=changes)


def reduced_stages(config: TrainerConfig, pp_index: int) -> tuple[Stage, ...]:
    """Return the stages of a pipeline rank, each with only its first blocks."""
    blocks = _BLOCKS // config.parallel.stages_per_rank
    return tuple(replace(stage, layers=stage.layers[:blocks]) for stage in held_stages(config, pp_index))


def not_covered(config: TrainerConfig) -> list[str]:
    """Return the settings of ``config`` that a dry run leaves out, one line each."""
    overflow = config.precision.compute == "fp16"
    skips_on_host = config.optimizer.name == "sgd" or config.memory.offload == "optimizer"
    left_out = {
        "precision.fp8: matrix products are tried in bf16": config.precision.fp8,
        "memory.compile: blocks are tried as they are": config.memory.compile,
        "model.experts: tokens are spread evenly over them, not as the router would": config.model.experts > 0,
        "precision.compute = fp16: no step is skipped because of an overflow": overflow and skips_on_host,
    }
    return [line for line, is_left_out in left_out.items() if is_left_out]
