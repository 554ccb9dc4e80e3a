"""The channels of ``[notify]``: a table of the file for each, such as ``[notify.slack]``, or several of one kind.

This module is imported for every ``--help``: it imports nothing large.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from holdfast_cli.settings.setting import EVERYWHERE, FileSection, Setting


@dataclass(frozen=True)
class ChannelSettings:
    """One channel. Paths are those of the daemon's machine."""

    kind: str
    """Key of :func:`channel_schema`."""
    name: str
    """Unique among the channels."""
    values: Mapping[str, Any]
    """Key -> value, for every key of the kind."""
    where: str = ""
    """FILE:LINE of its table."""


@cache
def channel_schema() -> dict[str, dict[str, Setting]]:
    """Return kind of channel -> key -> Setting, with type and default. A default of None: see ``required_keys``."""
    keys = [
        _key("webhook.url", str, "URL that gets the message as JSON.", unset="that of url_file"),
        _key("webhook.url_file", Path, "File with the URL, if the URL is a secret.", unset="the URL is in url"),
        _key("webhook.bearer_token_file", Path, "File with a token for the header Authorization.", unset="no token"),
        _key("slack.url_file", Path, "File with the URL of an incoming webhook of Slack."),
        _key("discord.url_file", Path, "File with the URL of a webhook of Discord."),
        _key("command.argv", _LIST, "Program and its arguments. No shell reads them.", example='["/opt/page-me"]'),
        _key("command.timeout_s", float, "Time after which the program is killed.", default=10.0, least=0.1, most=300),
        _key("email.host", str, "SMTP server."),
        _key("email.port", int, "Its port.", default=587, least=1, most=65535),
        _key("email.security", str, "starttls, tls or none.", default="starttls"),
        _key("email.user", str, "User for the login.", unset="no login"),
        _key("email.password_file", Path, "File with the password of the user.", unset="no login"),
        _key("email.to", _LIST, "Addresses that get the mail.", example='["me@example.com"]'),
        _key("email.from", str, "Address that the mail is from."),
    ]
    found: dict[str, dict[str, Setting]] = {}
    for key in keys:
        kind, _, name = key.name.partition(".")
        found.setdefault(kind, {})[name] = key
    for kind, known in found.items():
        unset = f"{kind}; of further ones {kind}-2, {kind}-3"
        known["name"] = _key(f"{kind}.name", str, "Name of the channel in logs and metrics.", unset=unset)
    return found


def required_keys(kind: str) -> Iterator[str]:
    """Yield the keys without which a channel cannot be."""
    return (name for name, setting in channel_schema()[kind].items() if setting.default is None and not setting.unset)


_LIST = tuple[str, ...]


def _key(name: str, value_type: type[Any], about: str, **facts: Any) -> Setting:
    by = tuple(EVERYWHERE.split())
    return Setting(section=FileSection.NOTIFY, name=name, help=about, commands=by, value_type=value_type, **facts)
