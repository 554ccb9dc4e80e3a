"""From command-line arguments to what is planned: the trainer's own flags and file, and a preset of the model."""

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
    """Return the configuration of a layout: preset, then the file, then flags as ``--parallel.dp 4``.

    Raises ConfigurationError with one line per problem.
    """
    return build(flags, _values(path, preset))


def load_search(
    path: Path | None, preset: str | None, flags: Sequence[str]
) -> tuple[TrainerConfig, Settings, Settings]:
    """Return the configuration without a layout, and what the flags fix of [parallel] and [memory].

    [parallel] of the file is left out: the layout is what is searched. Raises ConfigurationError.
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
    """Take ``--parallel.KEY VALUE`` and ``--parallel.KEY=VALUE`` out of ``flags``."""
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
