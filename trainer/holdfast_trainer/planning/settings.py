"""The settings of a plan: presets of well-known models, the trainer's file read and written, and flags."""

import difflib
import json
import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from holdfast_hooks import ConfigurationError
from holdfast_trainer.config import TrainerConfig, broken_rules, build, explain, read_file
from holdfast_trainer.config_sections import ModelConfig, ParallelConfig
from holdfast_trainer.planning.search import Settings


@dataclass(frozen=True)
class Preset:
    """A model, the tokens in one of its samples, and the samples in an optimizer step."""

    model: ModelConfig
    sequence: int
    global_batch: int


# Shapes and batches of Llama 2 (Touvron et al., 2023), of Llama 3 (8b, 405b; Grattafiori et al., 2024), and of GPT-3 as
# Narayanan et al. ("Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", 2021) train it.
# 405b has Llama 3's 16 million tokens in a step, and 8b has Llama 2's 4 million. GPT's two matrices of 4 x dim in a
# feed-forward part become SwiGLU's three of 8/3 x dim: as many parameters.
PRESETS = {
    "7b": Preset(
        ModelConfig(dim=4096, layers=32, heads=32, kv_heads=32, hidden=11008, vocabulary=32000),
        sequence=4096,
        global_batch=1024,
    ),
    "8b": Preset(
        ModelConfig(dim=4096, layers=32, heads=32, kv_heads=8, hidden=14336, vocabulary=128256, rope_theta=500_000),
        sequence=8192,
        global_batch=512,
    ),
    "13b": Preset(
        ModelConfig(dim=5120, layers=40, heads=40, kv_heads=40, hidden=13824, vocabulary=32000),
        sequence=4096,
        global_batch=1024,
    ),
    "70b": Preset(
        ModelConfig(dim=8192, layers=80, heads=64, kv_heads=8, hidden=28672, vocabulary=32000),
        sequence=4096,
        global_batch=1024,
    ),
    "175b": Preset(
        ModelConfig(dim=12288, layers=96, heads=96, kv_heads=96, hidden=32768, vocabulary=51200),
        sequence=2048,
        global_batch=1536,
    ),
    "405b": Preset(
        ModelConfig(dim=16384, layers=126, heads=128, kv_heads=8, hidden=53248, vocabulary=128256, rope_theta=500_000),
        sequence=8192,
        global_batch=2048,
    ),
}


def load_layout(path: Path | None, preset: str | None, flags: Sequence[str]) -> tuple[TrainerConfig, str]:
    """Return the configuration of a layout. The file overrides the preset, and flags override both.

    With it comes the line with which the trainer refuses a pipeline with fewer microbatches than ranks, or "": such a
    layout can be planned all the same. Raises ConfigurationError with one line for each other problem.
    """
    try:
        return build(flags, _values(path, preset)), ""
    except ConfigurationError as error:
        broken = broken_rules(error)
        if broken is None or not all(line.startswith("parallel.microbatches is ") for line in broken.problems):
            raise
        return broken.config, broken.problems[0]


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


def nearest_name(name: str, known: Collection[str]) -> str:
    """Return the one of ``known`` that is likely meant: the same first letter, the nearest number.

    Without a number, or such a letter, it is the one that looks most alike.
    """
    number = re.search(r"\d+(\.\d+)?", name)
    alike = [one for one in known if one[0] == name[:1].lower() or (one[0].isdigit() and name[:1].isdigit())]
    if number is None or not alike:
        return difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.0)[0]
    wanted = max(float(number[0]), 1e-9)
    return min(alike, key=lambda one: abs(math.log(int(re.findall(r"\d+", one)[0]) / wanted)))


def _values(path: Path | None, preset: str | None) -> dict[str, Any]:
    values = read_file(path) if path else {}
    if preset is None:
        return values
    if preset not in PRESETS:
        raise ConfigurationError(
            f"--model {preset}: there is no such preset, the nearest is {nearest_name(preset, PRESETS)}: take one of "
            f"{', '.join(PRESETS)}"
        )
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


def as_toml(config: TrainerConfig) -> str:
    """Return the file with all settings of the model and the layout, and of the rest those that are not the default."""
    settings = config.model_dump(mode="json", exclude_defaults=True)
    for section in ("model", "parallel"):
        settings[section] = getattr(config, section).model_dump(mode="json")
    ordered = {section: settings[section] for section in TrainerConfig.model_fields if settings.get(section)}
    return "\n".join(
        "\n".join([f"[{section}]", *(f"{key} = {_toml(value)}" for key, value in values.items()), ""])
        for section, values in ordered.items()
    )


def _toml(value: object) -> str:
    # Strings, numbers and booleans are the same in JSON and TOML, but for two things: TOML knows no surrogate pairs,
    # with which JSON escapes characters above U+FFFF, and wants U+007F escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def write_settings(config: TrainerConfig, path: Path) -> None:
    """Write the file to ``path``. Raises ConfigurationError if it exists, or cannot be written."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(as_toml(config))
    except FileExistsError:
        raise ConfigurationError(f"--write {path}: the file exists: name another, or remove it") from None
    except OSError as error:
        raise ConfigurationError(f"--write {path}: {error.strerror}: name a file in a folder that exists") from None
