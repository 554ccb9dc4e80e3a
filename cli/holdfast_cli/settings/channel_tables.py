"""Reads the tables ``[notify.KIND]`` of the file. Each refusal names the line of the table."""

import re
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from holdfast_base.http_post import check_http_url
from holdfast_cli.errors import SettingsError
from holdfast_cli.settings.channels import ChannelSettings, channel_schema, required_keys
from holdfast_cli.settings.setting import Setting
from holdfast_proto.vocabulary import HEARTBEAT, MAIL_SECURITY

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
_ADDRESS = re.compile(r"[^\s@<>,;\"]+@[^\s@<>,;\"]+")
_TABLE = re.compile(r"\s*\[\[?\s*notify\s*\.\s*([\w-]+)\s*\]")
_KEY = re.compile(r"\s*([\w-]+)\s*=")

Checker = Callable[[Setting, object], object]
"""Returns the typed value of a key. Raises SettingsError."""


def read_channels(section: Mapping[str, object], text: str, path: Path, check: Checker) -> tuple[ChannelSettings, ...]:
    """Return the channels in the section ``[notify]`` of a file. Raises SettingsError.

    Args:
        section: content of the section, without keys that are no tables.
        text: the whole file, for the numbers of lines.
        path: of the file.
        check: types a value.
    """
    found: list[ChannelSettings] = []
    lines = _Lines(text, path)
    for kind, tables in section.items():
        if kind not in channel_schema():
            near = get_close_matches(kind, channel_schema(), n=1)
            hint = f"the nearest is [notify.{near[0]}]; " if near else ""
            known = ", ".join(channel_schema())
            raise SettingsError(f"{lines.of(kind, 0)}: [notify.{kind}] is no channel: {hint}use one of {known}")
        every = tables if isinstance(tables, list) else [tables]
        for number, table in enumerate(every):
            if not isinstance(table, dict):
                raise SettingsError(f"{path}: notify.{kind} is a table: write [notify.{kind}], and its keys below")
            found.append(_channel(kind, number, table, lines, check))
    names = [channel.name for channel in found]
    for channel in found:
        if names.count(channel.name) > 1:
            raise SettingsError(f"{channel.where}: two channels are called {channel.name}: give one another name")
    return tuple(found)


def _channel(kind: str, number: int, table: Mapping[str, object], lines: "_Lines", check: Checker) -> ChannelSettings:
    known = channel_schema()[kind]
    values: dict[str, Any] = {name: setting.default for name, setting in known.items()}
    for name, value in table.items():
        where = lines.of(kind, number, name)
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"the nearest is {near[0]}; " if near else ""
            raise SettingsError(
                f"{where}: notify.{kind}.{name} is not a key: {hint}[notify.{kind}] takes {', '.join(known)}"
            )
        try:
            values[name] = check(known[name], value)
        except SettingsError as error:
            raise SettingsError(f"{where}: {str(error).removeprefix(f'{lines.path}: ')}") from None
    where = lines.of(kind, number)
    for name in required_keys(kind):
        if values[name] is None:
            raise SettingsError(f"{where}: [notify.{kind}] lacks {name}: {known[name].help}")
    problem = next(_problems(kind, values), "")
    if problem:
        raise SettingsError(f"{where}: [notify.{kind}]: {problem}")
    name = values.pop("name") or (kind if number == 0 else f"{kind}-{number + 1}")
    if not _NAME.fullmatch(name) or name == HEARTBEAT:
        allowed = f"1 to 32 letters, digits, '.', '_' or '-', and not {HEARTBEAT}"
        raise SettingsError(f"{where}: name = {name!r}: use {allowed}")
    return ChannelSettings(kind, name, values, where)


def _problems(kind: str, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with values that depend on each other, or have a form of their own."""
    if kind == "webhook":
        if (values["url"] is None) == (values["url_file"] is None):
            yield "set url or url_file, and not both"
        problem = check_http_url(values["url"]) if values["url"] is not None else ""
        if problem:
            yield f"url: {problem}"
        elif values["url"] is not None and values["bearer_token_file"] is not None and is_open(values["url"]):
            yield f"url: {TOKEN_IN_THE_OPEN}"
    if kind == "email":
        if values["security"] not in MAIL_SECURITY:
            yield f"security: use one of {', '.join(MAIL_SECURITY)}"
        if (values["user"] is None) != (values["password_file"] is None):
            yield "set user and password_file, or none of them"
        if values["user"] is not None and values["security"] == "none":
            yield 'a login needs security = "starttls" or "tls": without them everybody on the way can read it'
        for address in (values["from"], *values["to"]):
            if not _ADDRESS.fullmatch(address) or not address.isprintable():
                yield f"{address!r} is no address such as me@example.com"


def is_open(url: str) -> bool:
    """Return whether what is sent to a valid URL passes other machines unencrypted."""
    parts = urlsplit(url)
    if parts.scheme != "http":
        return False
    host = parts.hostname or ""
    try:
        return not ip_address(host).is_loopback
    except ValueError:
        return host != "localhost" and not host.endswith(".localhost")


TOKEN_IN_THE_OPEN = (
    "with http, everybody on the way can read the token of bearer_token_file: use https, or leave the token out"
)


class _Lines:
    """Finds the lines of channels and their keys, as far as they show without parsing TOML."""

    def __init__(self, text: str, path: Path) -> None:
        self.path = path
        self._lines = text.splitlines()

    def of(self, kind: str, number: int, key: str = "") -> str:
        """Return PATH:LINE of a channel's key, else of the channel's table, else PATH."""
        seen = -1
        table = 0
        is_inside = False
        for line, content in enumerate(self._lines, 1):
            heading = _TABLE.match(content)
            if heading:
                seen += heading[1] == kind
                is_inside = heading[1] == kind and seen == number
                table = line if is_inside else table
            elif content.lstrip().startswith("["):
                is_inside = False
            elif table and is_inside and key and (found := _KEY.match(content)) and found[1] == key:
                return f"{self.path}:{line}"
        return f"{self.path}:{table}" if table else str(self.path)
