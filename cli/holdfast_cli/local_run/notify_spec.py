"""The part of a run's spec that says who is notified, and the checks of its settings."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from holdfast_base.files import SecretError, read_secret
from holdfast_base.http_post import check_http_url
from holdfast_cli.errors import SettingsError
from holdfast_cli.settings.channel_tables import TOKEN_IN_THE_OPEN, is_open
from holdfast_cli.settings.channels import ChannelSettings
from holdfast_cli.settings.resolving import Resolved
from holdfast_cli.settings.schema import RunSettings, schema
from holdfast_proto.message_json import enum_names
from holdfast_proto.v1.store_pb2 import Heartbeat, Notify, NotifyChannel, VerdictKind


def notify_message(settings: RunSettings) -> Notify | None:
    """Return the part of the spec; None if nobody is notified. Paths are absolute, and no secret is in it."""
    heartbeat = settings.notify_heartbeat_url_file
    if not settings.notify_channels and heartbeat is None:
        return None
    signs = None
    if heartbeat is not None:
        fail = settings.notify_heartbeat_fail_url_file
        signs = Heartbeat(
            url_file=_path(heartbeat), fail_url_file=_path(fail), every_s=settings.notify_heartbeat_every_s
        )
    return Notify(
        on=settings.notify_on,
        ignored=settings.notify_ignore,
        min_interval_s=settings.notify_min_interval_s,
        console_url=settings.notify_console_url or "",
        channels=map(_channel, settings.notify_channels),
        heartbeat=signs,
    )


def check_notify(settings: RunSettings) -> None:
    """Check the settings by themselves. Raises SettingsError, which names the key."""
    kinds = enum_names(VerdictKind)
    unknown = next((kind for kind in settings.notify_ignore if kind not in kinds), None)
    if unknown is not None:
        raise SettingsError(f"notify.ignore holds {unknown!r}: use one of {', '.join(kinds)}")
    url = settings.notify_console_url
    if url is not None:
        problem = check_http_url(url)
        if not problem and (urlsplit(url).fragment or urlsplit(url).query):
            problem = "it ends in a query or a fragment, which may be a token: leave that out"
        if problem:
            raise SettingsError(f"notify.console_url: {problem}")
    if settings.notify_heartbeat_fail_url_file is not None and settings.notify_heartbeat_url_file is None:
        raise SettingsError("notify.heartbeat_fail_url_file has no effect without notify.heartbeat_url_file")


def check_files(resolved: Resolved) -> None:
    """Check the files and programs that the settings name, which are on this machine. Raises SettingsError."""
    settings = resolved.settings
    for field in ("notify_heartbeat_url_file", "notify_heartbeat_fail_url_file"):
        file = getattr(settings, field)
        problem = _file_problem(file, is_url=True) if file is not None else ""
        if problem:
            raise SettingsError(resolved.located(f"{schema()[field].key}: {problem}"))
    for channel in settings.notify_channels:
        for problem in _channel_problems(channel):
            raise SettingsError(f"{channel.where}: [notify.{channel.kind}]: {problem}")


def _channel_problems(channel: ChannelSettings) -> Iterator[str]:
    for key, value in channel.values.items():
        if isinstance(value, Path):
            problem = _file_problem(value, is_url=key == "url_file")
            if problem:
                yield f"{key}: {problem}"
    file, has_token = channel.values.get("url_file"), channel.values.get("bearer_token_file") is not None
    if file is not None and has_token and not _file_problem(file, is_url=True) and is_open(read_secret(file)):
        yield f"url_file: {TOKEN_IN_THE_OPEN}"
    if channel.kind == "command" and shutil.which(channel.values["argv"][0]) is None:
        yield f"argv: {channel.values['argv'][0]} is no program that can be run"


def _file_problem(path: Path, *, is_url: bool) -> str:
    try:
        text = read_secret(path)
    except SecretError as error:
        return str(error)
    problem = check_http_url(text) if is_url else ""
    return f"{path}: the URL in it cannot be used: {problem}" if problem else ""


_RENAMED = {"email.from": "sender", "slack.url_file": "path", "discord.url_file": "path"}


def _channel(channel: ChannelSettings) -> NotifyChannel:
    """Return the message of a channel: its fields have the names of the keys, but for those that are renamed."""
    fields = {
        _RENAMED.get(f"{channel.kind}.{key}", key): _path(value) if isinstance(value, Path) else value
        for key, value in channel.values.items()
        if value is not None
    }
    return NotifyChannel(name=channel.name, **{channel.kind: fields})


def _path(path: Path | None) -> str:
    # Not resolve(): a link may lead to another file by the time at which the secret is read.
    return str(path.absolute()) if path is not None else ""
