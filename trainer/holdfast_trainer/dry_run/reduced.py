"""What a dry run tries of a configuration: as little as shows all there is to its shapes."""

from dataclasses import replace

from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.model.stages import Stage, held_stages

_BLOCKS = 2
"""Of a rank. All blocks have the same shapes; two, because what comes between blocks matters as well."""


def reduced(config: TrainerConfig) -> TrainerConfig:
    """Return a configuration whose microbatches are of the same size but few, without what cannot be tried."""
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
    """Return the stages that a pipeline rank holds, with the first of their blocks only."""
    blocks = _BLOCKS // config.parallel.stages_per_rank
    return tuple(replace(stage, layers=stage.layers[:blocks]) for stage in held_stages(config, pp_index))


def not_covered(config: TrainerConfig) -> list[str]:
    """Return what of ``config`` a dry run leaves out: one line each."""
    overflow = config.precision.compute == "fp16"
    skips_on_host = config.optimizer.name == "sgd" or config.memory.offload == "optimizer"
    left_out = {
        "precision.fp8: matrix products are tried in bf16": config.precision.fp8,
        "memory.compile: blocks are tried as they are": config.memory.compile,
        "model.experts: tokens are spread evenly over them, whatever the router says": config.model.experts > 0,
        "precision.compute = fp16: no step is skipped because of an overflow": overflow and skips_on_host,
    }
    return [line for line, is_left_out in left_out.items() if is_left_out]
