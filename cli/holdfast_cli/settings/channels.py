"""The channels of ``[notify]``: a table of the file for each, such as ``[notify.slack]``, or several of one kind.

This module is imported for every ``--help``: it imports nothing large.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from holdfast_cli.settings.setting import FileSection, Setting


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
    return {
        "webhook": _keys(
            "webhook",
            url=_Key(str, "URL that gets the message as JSON.", unset="that of url_file"),
            url_file=_Key(Path, "File with the URL, if the URL is a secret.", unset="the URL is in url"),
            bearer_token_file=_Key(Path, "File with a token for the header Authorization.", unset="no token"),
        ),
        "slack": _keys("slack", url_file=_Key(Path, "File with the URL of an incoming webhook of Slack.")),
        "discord": _keys("discord", url_file=_Key(Path, "File with the URL of a webhook of Discord.")),
        "command": _keys(
            "command",
            argv=_Key(tuple[str, ...], "Program and its arguments. No shell reads them.", example='["/opt/page-me"]'),
            timeout_s=_Key(float, "Time after which the program is killed.", default=10.0, least=0.1, most=300),
        ),
        "email": _keys(
            "email",
            host=_Key(str, "SMTP server."),
            port=_Key(int, "Its port.", default=587, least=1, most=65535),
            security=_Key(str, "starttls, tls or none.", default="starttls"),
            user=_Key(str, "User for the login.", unset="no login"),
            password_file=_Key(Path, "File with the password of the user.", unset="no login"),
            to=_Key(tuple[str, ...], "Addresses that get the mail.", example='["me@example.com"]'),
            **{"from": _Key(str, "Address that the mail is from.")},
        ),
    }


def required_keys(kind: str) -> Iterator[str]:
    """Yield the keys without which a channel cannot be."""
    return (name for name, setting in channel_schema()[kind].items() if setting.default is None and not setting.unset)


@dataclass(frozen=True)
class _Key:
    value_type: Any
    help: str
    default: Any = None
    unset: str = ""
    least: float | None = None
    most: float | None = None
    example: str = ""


def _keys(kind: str, **keys: _Key) -> dict[str, Setting]:
    common = {
        "name": _Key(
            str, "Name of the channel in logs and metrics.", unset=f"{kind}; of further ones {kind}-2, {kind}-3"
        )
    }
    return {
        name: Setting(
            section=FileSection.NOTIFY,
            name=f"{kind}.{name}",
            flag="",
            help=key.help,
            commands=("run", "observe", "publish"),
            value_type=key.value_type,
            default=key.default,
            unset=key.unset,
            least=key.least,
            most=key.most,
            example=key.example,
        )
        for name, key in {**keys, **common}.items()
    }
