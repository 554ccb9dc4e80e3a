"""Where each setting of a run comes from: a flag, else the file, else its default. Nothing else has a say."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast_cli.errors import SettingsError, UsageError
from holdfast_cli.settings.file import DEFAULT_FILE, FileSettings, read_file
from holdfast_cli.settings.schema import RunSettings, schema
from holdfast_cli.settings.setting import Setting


@dataclass(frozen=True)
class Origin:
    """Where a value comes from."""

    kind: str
    """"flag", "file" or "default"."""
    where: str = ""
    """Name of the flag, or FILE:LINE."""


@dataclass(frozen=True)
class Resolved:
    """The settings of a run, and the source of each."""

    settings: RunSettings
    origins: dict[str, Origin]
    """Field of RunSettings -> source."""

    def located(self, message: str) -> str:
        """Return ``message``, which names flags or keys, with the place of each that the file sets."""
        places = [
            f"{setting.key} at {origin.where}"
            for setting, origin in ((schema()[field], origin) for field, origin in self.origins.items())
            if origin.kind == "file" and _is_named(setting, message)
        ]
        return f"{message} ({', '.join(places)})" if places else message


def resolve(command: str, given: Mapping[str, object], words: Sequence[str] | None, config: Path | None) -> Resolved:
    """Return the settings that ``command`` takes. ``words``: the command of a rank; none if the file has it.

    Raises SettingsError for what is wrong in the file, UsageError for what is neither there nor a flag.
    """
    return merge(command, {**given, "command": tuple(words)} if words else given, read_file(config))


def merge(command: str, given: Mapping[str, object], file: FileSettings | None) -> Resolved:
    """Return the settings that ``command`` takes, from the flags ``given``, a file and the defaults."""
    taken = {field: setting for field, setting in schema().items() if setting.is_taken_by(command)}
    values: dict[str, Any] = {}
    origins = dict.fromkeys(taken, Origin("default"))
    for field, setting in taken.items():
        if field in given:
            values[field], origins[field] = given[field], Origin("flag", setting.flag or "after --")
        elif file is not None and field in file.values:
            values[field], origins[field] = file.values[field], Origin("file", file.where(field))
    nodes = file.values.get("nodes", 1) if file is not None else 1
    if command == "run" and file is not None and nodes != 1:
        raise SettingsError(
            f"{file.path}: run.nodes = {nodes}: `holdfast run` trains on one machine: "
            "use `holdfast publish`, or remove the key"
        )
    for field, setting in taken.items():
        if field not in values and (setting.is_required(command) or (field == "command" and command != "config")):
            raise UsageError(_missing(setting, command, file))
    return Resolved(RunSettings(**values), origins)


def _is_named(setting: Setting, message: str) -> bool:
    name = setting.shown
    return bool(name) and re.search(rf"{re.escape(name)}(?![\w-])", message) is not None


def _missing(setting: Setting, command: str, file: FileSettings | None) -> str:
    path = file.path if file is not None else DEFAULT_FILE
    otherwise = f"or set {setting.name} in [{setting.section}] of {path}"
    if not setting.flag:
        return f"there is no COMMAND to run: give it after --, {otherwise}"
    return f"{setting.flags(command)[0]} is missing: give the flag, {otherwise}"
