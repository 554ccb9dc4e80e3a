"""What a training run is told: one TOML file, and flags generated from the same schema that override it.

Nothing is read from environment variables. All checks that need no other rank happen here, before a
process group exists, and every message names the key to change.
"""

import argparse
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from holdfast_hooks import ConfigurationError

VOCABULARY = 256
"""One token per byte value."""

Fraction = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """One table of the TOML file."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ModelConfig(Section):
    """The transformer."""

    dim: PositiveInt = 64
    """Width of the residual stream."""
    layers: PositiveInt = 4
    """Number of blocks."""
    heads: PositiveInt = 4
    """Query heads; model.dim / model.heads is the width of a head."""
    kv_heads: PositiveInt = 2
    """Key and value heads; each serves model.heads / model.kv_heads query heads."""
    hidden: PositiveInt = 192
    """Width inside the feed-forward part."""
    tied: bool = False
    """Use the embedding's weight for the head too."""
    rope_theta: PositiveFloat = 10_000.0
    """Base of the rotary frequencies."""
    norm_epsilon: PositiveFloat = 1e-5
    """Added to the mean square in every RMSNorm."""


class ParallelConfig(Section):
    """The layout: dp x tp x pp is the number of ranks."""

    dp: PositiveInt = 1
    """Data-parallel ranks, over which parameters, gradients and optimizer state are sharded (ZeRO stage 3)."""
    tp: PositiveInt = 1
    """Tensor-parallel ranks."""
    pp: PositiveInt = 1
    """Pipeline stages."""
    microbatches: PositiveInt = 1
    """Parts in which each data-parallel rank works off its share of the global batch."""
    sequence_parallel: bool = True
    """Between the tensor-parallel parts, shard activations along the sequence over the tp ranks."""


class DataConfig(Section):
    """The text to train on."""

    source: str = "stdlib"
    """`stdlib` (the source files of Python's own standard library), or the path of a text file or a folder of them."""
    cache_directory: Path = Path("~/.cache/holdfast")
    """Where the corpus is kept once built; `~` is the home folder."""
    sequence: PositiveInt = 128
    """Length of one sample in tokens, which are bytes."""


class TrainConfig(Section):
    """The loop."""

    steps: PositiveInt = 120
    """Optimizer steps."""
    global_batch: PositiveInt = 8
    """Samples per step, over all ranks."""
    seed: NonNegativeInt = 0
    """Source of the initial weights and of the order of the samples."""
    validate_every: NonNegativeInt = 40
    """Steps between validations; 0: never."""
    validation_batches: PositiveInt = 4
    """Global batches in one validation."""
    log_every: PositiveInt = 10
    """Steps between lines on stdout."""


class OptimizerConfig(Section):
    """AdamW, its learning rate schedule, and gradient clipping."""

    learning_rate: PositiveFloat = 3e-3
    """The highest learning rate, reached at the end of the warm-up."""
    warmup_steps: NonNegativeInt = 20
    """Steps over which the learning rate rises linearly."""
    floor: Fraction = 0.1
    """Where the cosine decay ends at the last step, as a fraction of optimizer.learning_rate."""
    beta1: Fraction = 0.9
    """Decay of the mean of the gradient."""
    beta2: Fraction = 0.95
    """Decay of the mean of the squared gradient."""
    epsilon: PositiveFloat = 1e-8
    """Added to the denominator of the update."""
    weight_decay: NonNegativeFloat = 0.1
    """Decay of matrices; vectors are not decayed."""
    clip_norm: PositiveFloat = 1.0
    """The global norm to which larger gradients are scaled down."""


class DistributedConfig(Section):
    """How the ranks run and talk."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`cpu` with gloo, `cuda` with NCCL; `auto` takes CUDA if there is any."""
    timeout_s: PositiveFloat = 600.0
    """How long a collective may take before the process group gives up."""


class TrainerConfig(BaseSettings):
    """Train a byte-level language model. --config FILE reads a TOML file; the flags below override it."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        cli_prog_name="holdfast_trainer",
        cli_exit_on_error=False,
    )

    model: ModelConfig = ModelConfig()
    parallel: ParallelConfig = ParallelConfig()
    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    distributed: DistributedConfig = DistributedConfig()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Leave out the environment and .env; the flags come in front by themselves."""
        return (init_settings,)

    @model_validator(mode="after")
    def _cross_check(self) -> "TrainerConfig":
        problems = [*_model_problems(self.model), *_layout_problems(self)]
        if problems:
            raise ValueError("\n".join(problems))
        return self


def load(arguments: Sequence[str], *, world_size: int) -> TrainerConfig:
    """Build the configuration from command-line ``arguments`` (and the file that they name).

    Raises ConfigurationError with one line per problem. ``--help`` prints the flags and exits.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", type=Path)
    known, flags = parser.parse_known_args(arguments)
    values = _read_toml(known.config) if known.config else {}
    try:
        config = TrainerConfig(_cli_parse_args=flags, **values)  # type: ignore[call-arg]
    except ValidationError as error:
        raise ConfigurationError("\n".join(_explain(error))) from None
    except SettingsError as error:
        raise ConfigurationError(str(error)) from None
    parallel = config.parallel
    ranks = parallel.dp * parallel.tp * parallel.pp
    if ranks != world_size:
        raise ConfigurationError(
            f"parallel.dp x parallel.tp x parallel.pp is {ranks}, but {world_size} ranks were started: "
            "change [parallel] or --ranks"
        )
    return config


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"--config {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigurationError(f"--config {path}: not a TOML file: {error}") from None


def _explain(error: ValidationError) -> list[str]:
    """Return one line per problem that pydantic found."""
    lines: list[str] = []
    for problem in error.errors():
        key = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            lines.append(f"{key}: unknown key: remove it or correct its name (--help lists them)")
        elif not key:
            lines += str(problem["ctx"]["error"]).splitlines()
        else:
            lines.append(f"{key}: {problem['msg']}, not {problem['input']!r}")
    return lines


def _divides(divisor_key: str, divisor: int, key: str, value: int) -> list[str]:
    if value % divisor == 0:
        return []
    return [f"{key} is {value}, which {divisor_key} = {divisor} does not divide: change {key} or {divisor_key}"]


def _model_problems(model: ModelConfig) -> list[str]:
    problems = [
        *_divides("model.heads", model.heads, "model.dim", model.dim),
        *_divides("model.kv_heads", model.kv_heads, "model.heads", model.heads),
    ]
    if not problems and model.dim // model.heads % 2:
        width = model.dim // model.heads
        problems.append(
            f"model.dim / model.heads is {width}, but rotary heads have an even width: change model.dim or model.heads"
        )
    return problems


def _layout_problems(config: TrainerConfig) -> list[str]:
    model, parallel, batch = config.model, config.parallel, config.train.global_batch
    problems = [
        *_divides("parallel.tp", parallel.tp, "model.heads", model.heads),
        *_divides("parallel.tp", parallel.tp, "model.kv_heads", model.kv_heads),
        *_divides("parallel.tp", parallel.tp, "model.hidden", model.hidden),
    ]
    if VOCABULARY % parallel.tp:
        problems.append(f"parallel.tp is {parallel.tp}, which does not divide {VOCABULARY} tokens: change parallel.tp")
    if parallel.sequence_parallel and config.data.sequence % parallel.tp:
        problems.append(
            f"data.sequence is {config.data.sequence}, which parallel.tp = {parallel.tp} does not divide: "
            "change data.sequence or set parallel.sequence_parallel = false"
        )
    if model.layers < parallel.pp:
        problems.append(f"model.layers is {model.layers}, too few for parallel.pp = {parallel.pp}: change either")
    if parallel.microbatches < parallel.pp:
        problems.append(
            f"parallel.microbatches is {parallel.microbatches}, but {parallel.pp} pipeline stages need as many: "
            "raise parallel.microbatches"
        )
    if batch % (parallel.dp * parallel.microbatches):
        problems.append(
            f"train.global_batch is {batch}, not a multiple of parallel.dp x parallel.microbatches = "
            f"{parallel.dp * parallel.microbatches}: change train.global_batch"
        )
    if model.tied and parallel.pp > 1:
        problems.append("model.tied needs embedding and head on one stage: set model.tied = false or parallel.pp = 1")
    return problems
