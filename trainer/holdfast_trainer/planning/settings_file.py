"""Writes a configuration as the trainer's TOML file."""

import json
from pathlib import Path

from holdfast_hooks import ConfigurationError
from holdfast_trainer.config import TrainerConfig


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
