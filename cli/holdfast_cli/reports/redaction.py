"""Takes arguments, and on request hosts, users and paths, out of texts that leave the machine."""

import contextlib
import getpass
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from holdfast_base.text import HIDDEN, arguments_without_secrets, without_secrets
from holdfast_cli.local_run.supervised_folder import NODE as LOCAL_NODE

CHANNEL_KINDS = ("webhook", "slack", "discord", "command", "email")
"""Channels of ``[notify]``."""

_NUMBER = re.compile(r"[+-]?(?:\d{1,12}(?:\.\d{0,12})?|\.\d{1,12})(?:[eE][+-]?\d{1,3})?")
_OPTION = re.compile(r"(?P<name>--?[A-Za-z][\w.-]*)(?:=(?P<value>.*))?", re.DOTALL)
_PLAIN_WORDS = ("true", "false", "yes", "no", "on", "off", "none")
_ADDRESS = re.compile(
    r"\b\d{1,3}(?:\.\d{1,3}){3}\b|(?<![\w:])\[?(?:[0-9a-fA-F]{1,4}:){3,7}[0-9a-fA-F]{0,4}\]?(?![\w:])"
)
_HOST_OF_URL = re.compile(r"(?<=://)(?P<user>[^\s/@]*@)?(?P<host>[\w.-]+)")
_PATH = re.compile(r"(?:(?<=file://)|(?<![\w:/.]))~?/(?:[^\s/'\"<>|:,;()]+/)*(?P<last>[^\s/'\"<>|:,;()]*)")
_SCRIPT = re.compile(r"[\w./-]+\.py")


def command_line(words: Iterable[str], *, show_arguments: bool) -> str:
    """Return a command with the values of its arguments hidden, as far as they may be secrets.

    Plain numbers and words such as ``true`` stay, because they are what a comparison of runs is about, and a secret is
    hardly ever one of them. ``show_arguments``: all values stay but secrets.
    """
    shown = arguments_without_secrets(words)
    return " ".join(shown if show_arguments else _without_values(shown))


def _without_values(words: Iterable[str]) -> Iterator[str]:
    before = ""
    for place, word in enumerate(words):
        option = _OPTION.fullmatch(word)
        if option is not None:
            name, value = option["name"], option["value"]
            yield name if value is None else f"{name}={_plain(value)}"
            before = name if value is None else ""
            continue
        is_program = place == 0 or before == "-m" or (not before and _SCRIPT.fullmatch(word) is not None)
        yield word if is_program else _plain(word)
        before = ""


def _plain(value: str) -> str:
    return value if _NUMBER.fullmatch(value) is not None or value.lower() in _PLAIN_WORDS else HIDDEN


@dataclass(frozen=True)
class Redaction:
    """What is taken out of every text of a report."""

    names: Mapping[str, str]
    """Name of a host or user -> what is shown for it; empty: they stay, as do paths and addresses."""

    def text(self, text: str) -> str:
        """Return a text as it may be shown."""
        text = without_secrets(text)
        if not self.names:
            return text
        for name, alias in sorted(self.names.items(), key=lambda pair: -len(pair[0])):
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", alias, text)
        text = _ADDRESS.sub("[address]", _PATH.sub(r"[folder]/\g<last>", text))
        return _HOST_OF_URL.sub(self._without_host, text)

    def _without_host(self, url: re.Match[str]) -> str:
        """Return the part of a URL up to its host, or bucket. What stands for a node of the run stays."""
        return f"{url['user'] or ''}{url['host'] if url['host'] in self.names.values() else '[host]'}"

    def command(self, words: Iterable[object], *, show_arguments: bool) -> str:
        """Return a run's command as reports and comparisons show it. See :func:`command_line`."""
        return self.text(command_line(map(str, words), show_arguments=show_arguments))


def without_receivers(notify: object) -> str:
    """Return what a run notifies people of, and by which kinds of channels. ``notify``: the setting, as JSON.

    Programs, addresses and URLs of channels are left out: they are about people, and hold secrets of any form.
    """
    if not isinstance(notify, Mapping):
        return HIDDEN
    kinds = [kind for channel in notify.get("channels") or () for kind in CHANNEL_KINDS if kind in channel]
    events = ", ".join(map(without_secrets, map(str, notify.get("on") or ())))
    beats = "; a heartbeat" if notify.get("heartbeat") else ""
    return f"{', '.join(kinds) or 'no channel'}{f', on {events}' if events else ''}{beats}"


def redaction(hosts: Iterable[str], *, redact_hosts: bool) -> Redaction:
    """Return what to take out. ``hosts``: names of nodes that the run had."""
    if not redact_hosts:
        return Redaction({})
    hosts = sorted(set(hosts) - {"", LOCAL_NODE})  # the name of each local run's node, and a word of its own
    names = {name: f"node-{number}" for number, name in enumerate(hosts)}
    own = socket.gethostname()
    for name in (own, own.partition(".")[0]):
        names.setdefault(name, "[host]")
    with contextlib.suppress(KeyError, OSError):  # the user has no name
        if getpass.getuser() != "root":  # nobody's name, and a word of its own
            names.setdefault(getpass.getuser(), "[user]")
    return Redaction(names)
