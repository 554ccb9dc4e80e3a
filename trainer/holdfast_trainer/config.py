"""The configuration of a training run: one schema for the TOML file and for the flags that override it.

No environment variable is read. All checks that need no other rank happen here, before a process group exists. Every
message names the key to change.
"""

import argparse
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import (
    ValidationError,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from holdfast_hooks import ConfigurationError
from holdfast_trainer import config_checks
from holdfast_trainer.config_sections import (
    DataConfig,
    DistributedConfig,
    HardwareConfig,
    MemoryConfig,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    PrecisionConfig,
    TrainConfig,
)
from holdfast_trainer.weights import llama_config


class TrainerConfig(BaseSettings):
    """Train a language model. --config FILE reads a TOML file, and the flags below override it."""

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
    hardware: HardwareConfig = HardwareConfig()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - pydantic's name
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic's name
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic's name
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic's name
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the values of the file alone: no environment variables. Pydantic puts the flags in front itself."""
        return (init_settings,)

    @model_validator(mode="before")
    @classmethod
    def _describe_weights(cls, values: object) -> object:
        """Complete ``[model]`` with the settings of the weights that it names."""
        if not isinstance(values, dict) or not isinstance(model := values.get("model"), dict):
            return values
        folder = model.get("init_from")
        if not (isinstance(folder, str) and folder):
            return values
        return {**values, "model": {**llama_config.model_settings(Path(folder).expanduser()), **model}}

    @model_validator(mode="after")
    def _cross_check(self) -> "TrainerConfig":
        problems = config_checks.problems(self)
        if problems:
            raise BrokenRulesError(self, problems)
        return self

    @property
    def replica_ranks(self) -> int | None:
        """Number of ranks of one data-parallel replica. None with experts: their load depends on all the ranks."""
        parallel = self.parallel
        return None if self.model.experts else parallel.cp * parallel.tp * parallel.pp * (parallel.dp_shard or 1)

    @property
    def microbatch_samples(self) -> int:
        """Samples in one microbatch of one dp rank. If the global batch does not come out even, some are padding."""
        return -(-self.train.global_batch // (self.parallel.dp * self.parallel.microbatches))


class BrokenRulesError(ValueError):
    """The settings of a configuration do not go together. The text has one line for each problem."""

    def __init__(self, config: TrainerConfig, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.config = config
        self.problems = problems


def broken_rules(error: ConfigurationError) -> BrokenRulesError | None:
    """Return what is wrong between the settings, if that is why :func:`build` has raised ``error``."""
    cause = error.__cause__
    problems = cause.errors() if isinstance(cause, ValidationError) else []
    found = (problem.get("ctx", {}).get("error") for problem in problems)
    return next((one for one in found if isinstance(one, BrokenRulesError)), None)


def load(arguments: Sequence[str], *, world_size: int) -> TrainerConfig:
    """Return the configuration that ``arguments`` and the file they name give, for ``world_size`` ranks.

    Raises ConfigurationError with one line for each problem. ``--help`` prints the flags and exits.
    """
    config = from_arguments(arguments)
    expect_ranks(config, world_size)
    return config


def from_arguments(arguments: Sequence[str]) -> TrainerConfig:
    """Return the same as :func:`load`, for as many ranks as the layout has."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", type=Path)
    known, flags = parser.parse_known_args(arguments)
    return build(flags, read_file(known.config) if known.config else {})


def expect_ranks(config: TrainerConfig, world_size: int) -> None:
    """Raise ConfigurationError unless the layout has ``world_size`` ranks."""
    if config.parallel.ranks != world_size:
        raise ConfigurationError(
            f"parallel.dp x parallel.cp x parallel.tp x parallel.pp is {config.parallel.ranks}, but {world_size} ranks "
            "were started: change [parallel] or --ranks"
        )


def resized(config: TrainerConfig, world_size: int) -> TrainerConfig:
    """Return ``config`` for a world of ``world_size`` ranks, which has fewer replicas while nodes are missing.

    The global batch stays the same: each replica computes more microbatches, none with more samples than before.
    Raises ConfigurationError if the layout cannot have ``world_size`` ranks.
    """
    parallel = config.parallel
    assert world_size <= parallel.ranks, "a run never grows beyond its configuration"
    if world_size == parallel.ranks:
        return config
    if config.replica_ranks is None:
        raise ConfigurationError(
            f"model.experts is {config.model.experts}, and a model with experts needs all {parallel.ranks} ranks, but "
            f"{world_size} were started: start the missing nodes, or set model.experts = 0"
        )
    if world_size % config.replica_ranks:
        shards = " x parallel.dp_shard" if parallel.dp_shard else ""
        raise ConfigurationError(
            f"parallel.cp x parallel.tp x parallel.pp{shards} is {config.replica_ranks}, which does not divide the "
            f"{world_size} ranks that were started without the missing nodes: change [parallel] or the ranks of a node"
        )
    dp = parallel.dp * world_size // parallel.ranks
    microbatches = -(-parallel.dp * parallel.microbatches // dp)
    if parallel.schedule == "interleaved-1f1b":
        microbatches += -microbatches % parallel.pp
    # Copies are not checked again: the global batch need not be a multiple of the new numbers.
    smaller = parallel.model_copy(update={"dp": dp, "microbatches": microbatches})
    return config.model_copy(update={"parallel": smaller})


def build(flags: Sequence[str], values: dict[str, Any]) -> TrainerConfig:
    """Return the configuration from ``values``, one mapping for each table, and from ``flags``, which override them.

    Raises ConfigurationError with one line for each problem. Its cause is pydantic's error, if there is one.
    """
    try:
        return TrainerConfig(_cli_parse_args=list(flags), **values)  # type: ignore[call-arg]
    except ValidationError as error:
        raise ConfigurationError("\n".join(explain(error))) from error
    except SettingsError as error:
        raise ConfigurationError(str(error)) from None


def read_file(path: Path) -> dict[str, Any]:
    """Return the unchecked contents of the TOML file at ``path``. Raises ConfigurationError if it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"--config {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigurationError(f"--config {path}: not a TOML file: {error}") from None


def explain(error: ValidationError) -> list[str]:
    """Return one line for each problem that pydantic found."""
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
