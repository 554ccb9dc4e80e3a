"""``holdfast config``: shows the settings of a run and where each comes from, and checks a file."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast_base.text import arguments_without_secrets
from holdfast_cli.errors import SettingsError
from holdfast_cli.flags.start_flags import CheckConfigFlags, ShowConfigFlags
from holdfast_cli.local_run.notify_spec import check_files
from holdfast_cli.local_run.run_options import local_run_options
from holdfast_cli.settings.file import DEFAULT_FILE, has_password, read_file
from holdfast_cli.settings.resolving import Origin, Resolved, merge, resolve
from holdfast_cli.settings.schema import RunSettings, schema
from holdfast_cli.settings.setting import FileSection
from holdfast_cli.trainer_command import check_configuration, check_published, check_starts
from holdfast_cli.views.output import print_json

_VALUE_COLUMNS = 40


def show(flags: ShowConfigFlags) -> None:
    """Print each setting with its source. What is printed is a file with the same settings, but for secrets."""
    resolved = resolve("config", flags.given, flags.command, flags.config)
    for name, setting in schema().items():
        value = getattr(resolved.settings, name)
        if isinstance(value, str) and has_password(value):
            raise SettingsError(f"{setting.flag}: a password in the URL is not shown: remove it")
    if flags.json:
        print_json(_as_json(resolved))
    else:
        print("\n".join(lines_of(resolved)))


def check(flags: CheckConfigFlags) -> None:
    """Check a file by itself, and what it names on this machine. Raises SettingsError if it would be refused."""
    found = read_file(flags.config)
    if found is None:
        raise SettingsError(f"{DEFAULT_FILE}: No such file or directory: name a file with --config")
    resolved = merge("config", {}, found)
    settings = resolved.settings
    try:
        local_run_options(resolved, run=settings.run or "unnamed", command=settings.command or ("true",))
    except SettingsError as error:
        raise SettingsError(f"{found.path}: {error}") from None
    if settings.nodes == 1:
        check_files(resolved)  # on several nodes, they are on the machine of the daemon
    try:
        _check_command(settings)
    except SettingsError as error:
        raise SettingsError(f"{resolved.origins['command'].where}: {error}") from None
    number = len(found.values)
    print(f"{found.path}: {number} setting{'' if number == 1 else 's'}, nothing is wrong")
    print(f"not checked: {'; '.join(_not_checked(settings))}")


def _check_command(settings: RunSettings) -> None:
    """Check the command as `holdfast run` does, or as `holdfast publish` does for several nodes."""
    if not settings.command:
        return
    is_here = settings.nodes == 1
    if is_here:
        check_starts(settings.command)
    else:
        check_published(settings.command)
    check_configuration(settings.command, ranks=settings.nodes * settings.ranks, is_here=is_here)


def _not_checked(settings: RunSettings) -> Iterator[str]:
    if not settings.command:
        yield "the command, because the file has none"
    elif settings.nodes > 1:
        yield "whether the nodes can start the command"
    if settings.nodes > 1 and (settings.notify_channels or settings.notify_heartbeat_url_file):
        yield "the files and programs of [notify], which are on the daemon's machine"
    yield "folders, ports and servers, which a start tries"


def lines_of(resolved: Resolved) -> Iterator[str]:
    """Yield the settings as lines of TOML, the source of each as a comment."""
    for section in FileSection:
        if section != next(iter(FileSection)):
            yield ""
        yield f"[{section}]"
        for field, setting in schema().items():
            if setting.key and setting.section == section:
                value, source = getattr(resolved.settings, field), resolved.origins[field]
                shown = f"{setting.name} = {_as_toml(value)}" if value not in (None, ()) else f"# {setting.name}"
                origin = _as_text(source) + (f": {setting.unset}" if value is None and setting.unset else "")
                yield f"{shown:{_VALUE_COLUMNS}}  # {origin}"
    for channel in resolved.settings.notify_channels:
        yield ""
        yield f"[[notify.{channel.kind}]]"
        for name, value in {"name": channel.name, **channel.values}.items():
            if value is not None:
                yield f"{f'{name} = {_as_toml(value)}':{_VALUE_COLUMNS}}  # {channel.where}"


def _as_text(source: Origin) -> str:
    return " ".join(filter(None, [source.kind if source.kind != "file" else "", source.where]))


def _as_json(resolved: Resolved) -> dict[str, Any]:
    found = {}
    for field, setting in schema().items():
        if setting.key:
            value, source = getattr(resolved.settings, field), resolved.origins[field]
            plain = _as_plain(value)
            found[setting.key] = {"value": plain, "source": source.kind, "where": source.where}
    for channel in resolved.settings.notify_channels:
        for name, value in channel.values.items():
            plain = _as_plain(value)
            key = f"notify.{channel.kind}.{channel.name}.{name}"
            found[key] = {"value": plain, "source": "file", "where": channel.where}
    return found


def _as_toml(value: object) -> str:
    return json.dumps(_as_plain(value), ensure_ascii=False)


def _as_plain(value: object) -> object:
    """Return a value as JSON has it. A list may be a command: the secrets in it are not shown."""
    if isinstance(value, tuple):
        return arguments_without_secrets(value)
    return str(value) if isinstance(value, Path) else value
