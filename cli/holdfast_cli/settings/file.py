"""Reads ``holdfast.toml`` and checks each key against the schema. A refusal is one line that says what is allowed."""

import grp
import math
import os
import pwd
import re
import stat
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import Enum
from pathlib import Path
from typing import Any, get_origin
from urllib.parse import parse_qs, urlsplit

from holdfast_cli.errors import SettingsError
from holdfast_cli.settings.channel_tables import read_channels
from holdfast_cli.settings.schema import schema
from holdfast_cli.settings.setting import FileSection, Setting
from holdfast_cli.settings.toml_places import Places, find_places

DEFAULT_FILE = Path("holdfast.toml")

_STARTING = frozenset({"run.command", "notify.command.argv", "store.redis"})
"""Keys that start programs. What a server of the store says is obeyed, too."""
_SECRET_FILE = "_file"
"""End of the names of keys that name a file with a secret."""
_MOST_CHARACTERS = 1 << 20
_SECRET = re.compile(r"password|passwd|secret|token|credential|access_key")


@dataclass(frozen=True)
class FileSettings:
    """What one file sets."""

    path: Path
    values: dict[str, object]
    """Field of RunSettings -> value. Relative paths are relative to the file's folder no longer."""
    places: Places

    def where(self, field: str) -> str:
        """Return PATH:LINE of a field, where its line is easily found."""
        return self.places.of(schema()[field].key)


def read_file(config: Path | None) -> FileSettings | None:
    """Read ``config``, else ``holdfast.toml`` in the current folder; None if that does not exist.

    Nobody has named the file in the current folder. So if another user may have written it, its keys that start
    programs or read secrets are refused. Raises SettingsError.
    """
    path = config or DEFAULT_FILE
    if config is None and not os.path.lexists(path):  # a link to nothing was meant to be read
        return None
    try:
        with path.open() as file:
            stranger = "" if config is not None else _stranger(os.fstat(file.fileno()))
            text = file.read(_MOST_CHARACTERS + 1)
        if len(text) > _MOST_CHARACTERS:
            raise SettingsError(f"{path}: longer than {_MOST_CHARACTERS} characters: it is no file of settings")
        return parse_file(text, path, stranger)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text in UTF-8"
        raise SettingsError(f"{path}: {reason}: name a file that you can read with --config") from None


def _stranger(status: os.stat_result) -> str:
    """Return why another user may have written a file; empty: only this user, root, or a group of one user can have."""
    if status.st_uid not in (os.geteuid(), 0):
        return f"the file belongs to {_user_name(status.st_uid)} (uid {status.st_uid})"
    mode = f"(mode {stat.S_IMODE(status.st_mode):04o}, owner {_user_name(status.st_uid)})"
    if status.st_mode & stat.S_IWOTH:
        return f"every user can write the file {mode}"
    # Where umask is 002, each user has a group of the same name or number, and new files belong to that.
    is_private = status.st_gid == status.st_uid or _group_name(status.st_gid) == _user_name(status.st_uid)
    if status.st_mode & stat.S_IWGRP and not is_private:
        return f"group {_group_name(status.st_gid)} can write the file {mode}"
    return ""


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # containers know few users
        return f"user {uid}"


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def parse_file(text: str, path: Path, stranger: str = "") -> FileSettings:
    """Return what ``text``, the content of ``path``, sets. Raises SettingsError at the first wrong key.

    ``stranger``: why another user may have written the file; empty: all keys are obeyed.
    """
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits, and arrays in arrays
        raise SettingsError(f"{path}: not valid TOML: {error}") from None
    fields = {setting.key: field for field, setting in schema().items() if setting.key}
    places = find_places(text, path)
    values: dict[str, object] = {}

    def check(setting: Setting, value: object, place: str) -> object:
        return _checked(setting, value, place, path, stranger)

    notify = document.get(FileSection.NOTIFY)
    if isinstance(notify, dict):  # channels are the only tables within a section
        channels = {name: notify.pop(name) for name, content in list(notify.items()) if _is_table(content)}
        if channels:
            values["notify_channels"] = read_channels(channels, places, check)
    for section, name, value in _entries(document, places):
        key = f"{section}.{name}"
        if key not in fields:
            raise SettingsError(f"{places.of(key)}: {_unknown_key(section, name)}")
        values[fields[key]] = check(schema()[fields[key]], value, places.of(key))
    return FileSettings(path, values, places)


def _is_table(content: object) -> bool:
    return isinstance(content, dict) or (isinstance(content, list) and any(isinstance(one, dict) for one in content))


def _entries(document: dict[str, object], places: Places) -> Iterator[tuple[str, str, object]]:
    for section, content in document.items():
        place = places.of(section)
        if section not in list(FileSection):
            if not isinstance(content, dict):
                raise SettingsError(f"{place}: {_unknown_key('', section)}")
            near = max(FileSection, key=lambda known: _likeness(section, known))
            raise SettingsError(
                f"{place}: [{section}] is not a section: the nearest is [{near}]; use one of {', '.join(FileSection)}"
            )
        if not isinstance(content, dict):
            raise SettingsError(f"{place}: {section} is a section: write [{section}], and its keys below")
        for name, value in content.items():
            yield section, name, value


def _unknown_key(section: str, name: str) -> str:
    key = f"{section}.{name}" if section else name
    if _SECRET.search(name.lower()):
        return f"{key} is refused: no secret belongs in this file: name a file that holds it: store.redis_password_file"
    for setting in schema().values():
        if not setting.key and name == setting.flag.removeprefix("--").replace("-", "_"):
            return f"{key} is refused: it is for one start: use the flag {setting.flag}"
    near = max(
        (setting for setting in schema().values() if setting.key),
        key=lambda known: max(_likeness(name, alias) for alias in _aliases(known)) + (known.section == section) / 10,
    )
    known = ", ".join(setting.name for setting in schema().values() if setting.key and setting.section == section)
    return f"{key} is not a key: the nearest is {near.key}" + (f"; [{section}] takes {known}" if section else "")


def _aliases(setting: Setting) -> tuple[str, str]:
    return setting.name, setting.flag.removeprefix("--").replace("-", "_")


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other).ratio()


def _checked(setting: Setting, value: object, place: str, path: Path, stranger: str) -> object:
    """Return a value of the setting's type. Raises SettingsError, which never shows a URL with a password."""
    if stranger and (setting.key in _STARTING or setting.name.endswith(_SECRET_FILE)):
        raise SettingsError(
            f"{place}: {setting.key} is refused, because it starts a program or reads a secret, and {stranger}: "
            f"if you trust it, name it: --config {path}"
        )
    if isinstance(value, str) and "://" in value and has_password(value):
        fix = "put it into a file, and name that by store.redis_password_file"
        if setting.is_location:
            fix = "leave it out: credentials are taken from the environment or from files"
        elif setting.section == FileSection.NOTIFY:
            fix = "put the secret into a file, and name that by a key that ends in _file"
        raise SettingsError(f"{place}: {setting.key} has a password in its URL: no secret belongs in this file: {fix}")
    try:
        typed = _typed(setting.value_type, value)
    except ValueError:
        raise SettingsError(f"{place}: {setting.key} = {_shown(value)}: use {setting.allowed}") from None
    if setting.choices and isinstance(typed, tuple) and not set(typed) <= set(setting.choices):
        wrong = next(word for word in typed if word not in setting.choices)
        raise SettingsError(f'{place}: {setting.key} holds "{wrong}": use {setting.allowed}')
    problem = setting.range_problem(typed) if isinstance(typed, int | float) else None
    if problem:
        raise SettingsError(f"{place}: {setting.key} = {_shown(value)}: {problem}")
    if isinstance(typed, Path):
        return path.parent / typed
    if setting.is_location and isinstance(typed, str) and "://" not in typed:
        return str(path.parent / typed)
    return typed


def _typed(kind: type[Any], value: object) -> object:
    """Return ``value``, as TOML has it, as a ``kind``. Raises ValueError. A number without a point is a float too."""
    if get_origin(kind) is tuple:
        if isinstance(value, list) and value and all(isinstance(word, str) for word in value):
            return tuple(value)
    elif kind is float:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    elif kind in (int, bool):
        if type(value) is kind:
            return value
    elif isinstance(value, str) and (value or issubclass(kind, Enum)):
        return kind(value)
    raise ValueError


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    return str(value) if isinstance(value, int | float) else f"a {type(value).__name__}"


def has_password(url: str) -> bool:
    """Whether a URL shows a password to everybody who sees it."""
    parts = urlsplit(url)
    return parts.password is not None or "password" in parse_qs(parts.query, keep_blank_values=True)
