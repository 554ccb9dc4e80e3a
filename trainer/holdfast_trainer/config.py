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
from holdfast_trainer import config_checks

BYTE_VOCABULARY = 256
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
    """Width inside the feed-forward part; of one expert, if there are experts."""
    vocabulary: PositiveInt = BYTE_VOCABULARY
    """Rows of the embedding and of the head: at least the tokenizer's tokens (256 for bytes)."""
    tied: bool = False
    """Use the embedding's weight for the head too."""
    rope_theta: PositiveFloat = 10_000.0
    """Base of the rotary frequencies."""
    norm_epsilon: PositiveFloat = 1e-5
    """Added to the mean square in every RMSNorm."""
    experts: NonNegativeInt = 0
    """Feed-forward parts of each block, of which a router picks a few for each token; 0: one that serves all tokens."""
    experts_per_token: PositiveInt = 2
    """How many experts the router picks for a token."""
    capacity_factor: NonNegativeFloat = 0.0
    """Tokens of one sequence that an expert takes, as a multiple of its even share; more are dropped. 0: no limit."""
    balance_coefficient: NonNegativeFloat = 0.01
    """Weight of the load-balance loss in what is minimised."""


class ParallelConfig(Section):
    """The layout: dp x cp x tp x pp is the number of ranks."""

    dp: PositiveInt = 1
    """Data-parallel ranks."""
    dp_shard: NonNegativeInt = 0
    """Over how many of the dp ranks (times cp) state is sharded; the others hold replicas of it (HSDP). 0: over all."""
    zero: Annotated[int, Field(ge=0, le=3)] = 3
    """ZeRO stage: what is sharded. 0 nothing, 1 optimizer state, 2 and gradients, 3 and parameters."""
    tp: PositiveInt = 1
    """Tensor-parallel ranks."""
    pp: PositiveInt = 1
    """Pipeline-parallel ranks."""
    cp: PositiveInt = 1
    """Context-parallel ranks, which share one sequence."""
    ep: PositiveInt = 1
    """Expert-parallel ranks, borrowed from dp_shard x cp (at ZeRO 0: from dp x cp), each with its experts."""
    microbatches: PositiveInt = 1
    """Parts in which each data-parallel rank works off its share of the global batch (gradient accumulation)."""
    schedule: Literal["gpipe", "1f1b", "interleaved-1f1b", "zero-bubble"] = "1f1b"
    """Order of the microbatches' forward and backward passes over the pipeline."""
    sequence_parallel: bool = True
    """Between the tensor-parallel parts, shard activations along the sequence over the tp ranks."""
    loss_parallel: bool = True
    """Compute the loss on logits that stay sharded over tp along the vocabulary."""

    @property
    def ranks(self) -> int:
        """Number of ranks of this layout."""
        return self.dp * self.cp * self.tp * self.pp

    @property
    def shards(self) -> int:
        """Number of data-parallel ranks that share one copy of the state."""
        if self.zero == 0:
            return 1
        return self.dp_shard or self.dp

    @property
    def replicas(self) -> int:
        """Number of such copies."""
        return self.dp // self.shards

    @property
    def stages_per_rank(self) -> int:
        """Pipeline stages that each rank holds."""
        return 2 if self.pp > 1 and self.schedule in ("interleaved-1f1b", "zero-bubble") else 1


class PrecisionConfig(Section):
    """Data types. Master weights, optimizer state and reductions are fp32, whatever the model computes in."""

    compute: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Parameters and activations in forward and backward passes; fp16 scales the loss dynamically."""
    fp8: bool = False
    """Matrix products of the blocks in fp8, on GPUs that have it (compute capability 8.9 and up)."""
    loss_scale: PositiveFloat = 65536.0
    """First loss scale of fp16."""
    loss_scale_interval: PositiveInt = 2000
    """Steps without overflow after which the loss scale doubles."""


class MemoryConfig(Section):
    """What is traded for memory."""

    checkpointing: Literal["none", "selective", "full"] = "none"
    """Activations that are computed again in the backward pass: of a block all (`full`), or all but those of its matrix
    products and attention (`selective`)."""
    offload: Literal["none", "optimizer", "parameters"] = "none"
    """Kept in host memory: optimizer state and master weights (`optimizer`), or all sharded state (`parameters`)."""
    compile: bool = False
    """Compile each block with torch.compile."""


class DataConfig(Section):
    """The text to train on."""

    source: str = "stdlib"
    """`stdlib` (the source files of Python's own standard library), the path of a text file or a folder of them, or a
    file of token ids (`*.bin`, `*.npy`)."""
    validation: str = ""
    """Path of the text or token file to validate on; empty: a share of data.source."""
    validation_share: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """Part of data.source that is kept for validation, if data.validation names nothing."""
    tokenizer: str = "bytes"
    """`bytes`, or the path of a Hugging Face tokenizer.json."""
    token_dtype: Literal["uint16", "uint32"] = "uint16"
    """Of a raw token file (`*.bin`)."""
    cache_directory: Path = Path("~/.cache/holdfast")
    """Where the corpus is kept once built; `~` is the home folder."""
    sequence: PositiveInt = 128
    """Length of one sample in tokens."""
    prefetch: NonNegativeInt = 2
    """Batches that a thread prepares ahead; 0: none."""
    overlap_ngram: NonNegativeInt = 13
    """Length in tokens of the n-grams that are looked up in both training and validation text; 0: not checked."""
    overlap_limit: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Share of the validation text's n-grams that may occur in the training text."""


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
    """The optimizer, its learning rate schedule, and gradient clipping."""

    name: Literal["adamw", "sgd"] = "adamw"
    """Which optimizer."""
    learning_rate: PositiveFloat = 3e-3
    """The highest learning rate, reached at the end of the warm-up."""
    warmup_steps: NonNegativeInt = 20
    """Steps over which the learning rate rises linearly."""
    floor: Fraction = 0.1
    """Where the cosine decay ends at the last step, as a fraction of optimizer.learning_rate."""
    beta1: Fraction = 0.9
    """AdamW: decay of the mean of the gradient."""
    beta2: Fraction = 0.95
    """AdamW: decay of the mean of the squared gradient."""
    epsilon: PositiveFloat = 1e-8
    """AdamW: added to the denominator of the update."""
    momentum: Fraction = 0.9
    """SGD: decay of the running sum of gradients."""
    weight_decay: NonNegativeFloat = 0.1
    """Decay of matrices; vectors are not decayed."""
    clip_norm: PositiveFloat = 1.0
    """The global norm to which larger gradients are scaled down."""


class DistributedConfig(Section):
    """How the ranks run and talk."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`cpu` with gloo, `cuda` with NCCL; `auto` takes CUDA if there is any."""
    backend: Literal["auto", "gloo"] = "auto"
    """`gloo` also on GPUs, which lets several ranks share one GPU; `auto` takes NCCL there."""
    timeout_s: PositiveFloat = 600.0
    """How long a collective may take before the process group gives up."""


class TrainerConfig(BaseSettings):
    """Train a language model. --config FILE reads a TOML file; the flags below override it.

    --dry-run trains nothing: this process tries a step of all ranks of the layout, without data or memory.
    """

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        cli_prog_name="holdfast_trainer",
        cli_exit_on_error=False,
    )

    model: ModelConfig = ModelConfig()
    parallel: ParallelConfig = ParallelConfig()
    precision: PrecisionConfig = PrecisionConfig()
    memory: MemoryConfig = MemoryConfig()
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
        problems = config_checks.problems(self)
        if problems:
            raise ValueError("\n".join(problems))
        return self


def load(arguments: Sequence[str], *, world_size: int) -> TrainerConfig:
    """Build the configuration from command-line ``arguments`` (and the file that they name), for ``world_size`` ranks.

    Raises ConfigurationError with one line per problem. ``--help`` prints the flags and exits.
    """
    config = from_arguments(arguments)
    expect_ranks(config, world_size)
    return config


def from_arguments(arguments: Sequence[str]) -> TrainerConfig:
    """Do what :func:`load` does, for as many ranks as the layout has."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", type=Path)
    known, flags = parser.parse_known_args(arguments)
    return build(flags, read_file(known.config) if known.config else {})


def expect_ranks(config: TrainerConfig, world_size: int) -> None:
    """Raise ConfigurationError unless the layout is one of ``world_size`` ranks."""
    if config.parallel.ranks != world_size:
        raise ConfigurationError(
            f"parallel.dp x parallel.cp x parallel.tp x parallel.pp is {config.parallel.ranks}, but {world_size} ranks "
            "were started: change [parallel] or --ranks"
        )


def build(flags: Sequence[str], values: dict[str, Any]) -> TrainerConfig:
    """Build the configuration from ``values``, table by table, and ``flags``, which override them.

    Raises ConfigurationError with one line per problem.
    """
    try:
        return TrainerConfig(_cli_parse_args=list(flags), **values)  # type: ignore[call-arg]
    except ValidationError as error:
        raise ConfigurationError("\n".join(explain(error))) from None
    except SettingsError as error:
        raise ConfigurationError(str(error)) from None


def read_file(path: Path) -> dict[str, Any]:
    """Return what is in the TOML file at ``path``, unchecked. Raises ConfigurationError if it is none."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"--config {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigurationError(f"--config {path}: not a TOML file: {error}") from None


def explain(error: ValidationError) -> list[str]:
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
