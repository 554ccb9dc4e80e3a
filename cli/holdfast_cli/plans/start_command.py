"""The command that starts a planned layout. It can be pasted into a shell as it is."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast_base.text import arguments_without_secrets
from holdfast_trainer.config import TrainerConfig, read_file
from holdfast_trainer.planning.hardware import Cluster

_WIDTH = 76
_FOR_THE_SHELL = ("$REDIS", "$CHECKPOINTS")


def start_command(config: TrainerConfig, cluster: Cluster, file: Path | None) -> list[str]:
    """Return the words that start ``config``: `holdfast run` on one node, else `holdfast publish`.

    ``file``: the trainer's file that it begins with; flags set what is different there.
    """
    ranks = config.parallel.ranks
    per_node = max(size for size in range(1, min(ranks, cluster.gpus_per_node) + 1) if ranks % size == 0)
    if per_node == ranks:
        ours = ["holdfast", "run", "--ranks", str(ranks)]
    else:
        how = ["--nodes", str(ranks // per_node), "--ranks-per-node", str(per_node)]
        redis, checkpoints = _FOR_THE_SHELL
        ours = ["holdfast", "publish", "--run", "planned", *how, "--redis", redis, "--checkpoints", checkpoints]
    named = [] if file is None else ["--config", str(file)]
    return [*ours, "--", "python", "-m", "holdfast_trainer", *named, *_flags(config, file)]


def on_one_line(words: Sequence[str]) -> str:
    """Return the words as one line for a shell."""
    return " ".join(_quoted(word) for word in arguments_without_secrets(words))


def on_several_lines(words: Sequence[str]) -> str:
    """Return the words as lines that a terminal of 80 columns need not wrap, for a shell. A flag keeps its value."""
    parts: list[str] = []
    for word in arguments_without_secrets(words):
        is_flag = bool(parts) and parts[-1].startswith("-") and parts[-1] != "--" and " " not in parts[-1]
        if is_flag and not word.startswith("-"):
            parts[-1] += f" {_quoted(word)}"
        else:
            parts.append(_quoted(word))
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + 1 + len(part) > _WIDTH:
            lines.append(f"  {part}")
        else:
            lines[-1] += f" {part}"
    return " \\\n".join(lines)


def places_to_set(words: Sequence[str]) -> str:
    """Return what to set in the shell before a command of several nodes; "" for one node."""
    return (
        "set REDIS to the URL of Redis, and CHECKPOINTS to a folder that all nodes see"
        if _FOR_THE_SHELL[0] in words
        else ""
    )


def _flags(config: TrainerConfig, file: Path | None) -> list[str]:
    """Return the flags for all settings of the trainer that are not the file's, or else the default."""
    given: dict[str, Any] = {} if file is None else read_file(file)
    flags: list[str] = []
    for section, values in config.model_dump(mode="json", exclude={"hardware"}).items():
        defaults = TrainerConfig.model_fields[section].default.model_dump(mode="json")
        base = {**defaults, **given.get(section, {})}
        for key, value in values.items():
            if value != base[key]:
                flags += [f"--{section}.{key}", str(value)]
    return flags


def differences(config: TrainerConfig, other: TrainerConfig) -> list[str]:
    """Return the flags of the layout of ``other`` that ``config`` does not have."""
    flags: list[str] = []
    for section in ("parallel", "memory"):
        ours, theirs = (getattr(one, section).model_dump(mode="json") for one in (config, other))
        flags += [f"--{section}.{key} {value}" for key, value in theirs.items() if value != ours[key]]
    return flags


def _quoted(word: str) -> str:
    return f'"{word}"' if word in _FOR_THE_SHELL else shlex.quote(word)
