"""The settings of a plan: a preset of the model, the trainer's file, and its flags on the command line."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from holdfast_hooks import ConfigurationError
from holdfast_trainer.config import ParallelConfig, TrainerConfig, build, explain, read_file
from holdfast_trainer.planning.presets import PRESETS
from holdfast_trainer.planning.search import Settings


def load_layout(path: Path | None, preset: str | None, flags: Sequence[str]) -> TrainerConfig:
    """Return the configuration of a layout. The file overrides the preset, and flags override both.

    Raises ConfigurationError with one line for each problem.
    """
    return build(flags, _values(path, preset))


def load_search(
    path: Path | None, preset: str | None, flags: Sequence[str]
) -> tuple[TrainerConfig, Settings, Settings]:
    """Return the configuration without a layout, and the settings of [parallel] and [memory] that the flags fix.

    [parallel] of the file is ignored, because the search finds the layout. Raises ConfigurationError.
    """
    values = _values(path, preset)
    values.pop("parallel", None)
    layout, others = _split(flags)
    try:
        parallel = ParallelConfig.model_validate(layout)
    except ValidationError as error:
        raise ConfigurationError("\n".join(f"parallel.{line}" for line in explain(error))) from None
    config = build(others, values)
    fixed = {"checkpointing"} if any(re.match(r"--memory\.checkpointing\b", flag) for flag in others) else set()
    return config, parallel.model_dump(include=set(layout)), config.memory.model_dump(include=fixed)


def _values(path: Path | None, preset: str | None) -> dict[str, Any]:
    values = read_file(path) if path else {}
    if preset is None:
        return values
    if preset not in PRESETS:
        raise ConfigurationError(f"--model {preset}: there is no such preset: take one of {', '.join(PRESETS)}")
    known = PRESETS[preset]
    defaults: dict[str, dict[str, object]] = {
        "data": {"sequence": known.sequence},
        "train": {"global_batch": known.global_batch},
        "precision": {"compute": "bf16"},
    }
    merged = {section: {**settings, **values.get(section, {})} for section, settings in defaults.items()}
    return {**values, **merged, "model": known.model.model_dump()}


def _split(flags: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the settings of ``--parallel.KEY VALUE`` and ``--parallel.KEY=VALUE``, and all other flags."""
    layout: dict[str, str] = {}
    others: list[str] = []
    remaining = iter(flags)
    for flag in remaining:
        if not flag.startswith("--parallel."):
            others.append(flag)
            continue
        key, equals, value = flag.removeprefix("--parallel.").partition("=")
        layout[key] = value if equals else next(remaining, "")
    return layout, others
