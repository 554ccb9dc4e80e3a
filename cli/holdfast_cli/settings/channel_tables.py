"""Reads the tables ``[notify.KIND]`` of the file. Each refusal names the line of the table."""

import re
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from holdfast_base.http_post import check_http_url
from holdfast_cli.errors import SettingsError
from holdfast_cli.settings.channels import ChannelSettings, channel_schema, required_keys
from holdfast_cli.settings.setting import Setting
from holdfast_cli.settings.toml_places import Places, nth_table
from holdfast_proto.vocabulary import HEARTBEAT, MAIL_SECURITY

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
_ADDRESS = re.compile(r"[^\s@<>,;\"]+@[^\s@<>,;\"]+")

Checker = Callable[[Setting, object, str], object]
"""Returns the typed value of a key at a place. Raises SettingsError."""


def read_channels(section: Mapping[str, object], places: Places, check: Checker) -> tuple[ChannelSettings, ...]:
    """Return the channels in the section ``[notify]`` of a file. Raises SettingsError.

    Args:
        section: content of the section, without keys that are no tables.
        places: of the file.
        check: types a value.
    """
    found: list[ChannelSettings] = []
    for kind, tables in section.items():
        name = f"notify.{kind}"
        if kind not in channel_schema():
            hint = _nearest(kind, channel_schema(), "[notify.{}]")
            raise SettingsError(
                f"{places.of(name)}: [{name}] is no channel: {hint}use one of {', '.join(channel_schema())}"
            )
        every = tables if isinstance(tables, list) else [tables]
        for number, table in enumerate(every):
            if not isinstance(table, dict):
                raise SettingsError(f"{places.path}: {name} is a table: write [{name}], and its keys below")
            found.append(_channel(kind, number, table, places, check))
    names = [channel.name for channel in found]
    for channel in found:
        if names.count(channel.name) > 1:
            raise SettingsError(f"{channel.where}: two channels are called {channel.name}: give one another name")
    return tuple(found)


def _channel(kind: str, number: int, table: Mapping[str, object], places: Places, check: Checker) -> ChannelSettings:
    known = channel_schema()[kind]
    heading = nth_table(f"notify.{kind}", number)
    values: dict[str, Any] = {name: setting.default for name, setting in known.items()}
    for name, value in table.items():
        where = places.of(f"{heading}.{name}", heading)
        if name not in known:
            hint = _nearest(name, known)
            raise SettingsError(
                f"{where}: notify.{kind}.{name} is not a key: {hint}[notify.{kind}] takes {', '.join(known)}"
            )
        values[name] = check(known[name], value, where)
    where = places.of(heading)
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


def _nearest(word: str, known: Mapping[str, object], form: str = "{}") -> str:
    near = get_close_matches(word, known, n=1)
    return f"the nearest is {form.format(near[0])}; " if near else ""


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
