"""Takes secrets, and on request hosts, users and paths, out of texts that leave the machine.

The rules are for words that look like secrets. They cannot know a password that looks like any other word.
"""

import contextlib
import getpass
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

HIDDEN = "[hidden]"

_SECRET_NAME = r"(?:pass(?:word|wd|phrase)?|secret|token|credentials?|auth(?:orization)?|(?:api|access)?[-_]?key)"
_CREDENTIALS = re.compile(r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]*://)[^\s/@]+@")
_QUERY = re.compile(r"(?P<url>\b[A-Za-z][A-Za-z0-9+.-]*://[^\s?#]+)\?[^\s]+")
_NAMED = re.compile(
    rf"(?P<name>[\w-]*{_SECRET_NAME}[\"']?\s*[=:]\s*|--[\w-]*{_SECRET_NAME}\s+)"
    r"(?:Bearer\s+|Basic\s+)?(?:\"[^\"]*\"|'[^']*'|[^\s,;&]+)",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(?P<kind>Bearer|Basic)\s+[A-Za-z0-9+/_.=-]{8,}", re.IGNORECASE)
_KNOWN_TOKENS = re.compile(
    r"\b(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[abprs]-|AKIA|ASIA|ya29\.|eyJ)[A-Za-z0-9_.+/=-]{8,}"
)
_LONG = re.compile(r"(?<![\w/.+-])(?=[\w+-]*\d)(?=[\w+-]*[A-Za-z])[\w+-]{40,}={0,2}(?![\w/.])")
_NUMBER = re.compile(r"[+-]?(?:\d{1,12}(?:\.\d{0,12})?|\.\d{1,12})(?:[eE][+-]?\d{1,3})?")
_OPTION = re.compile(r"(?P<name>--?[A-Za-z][\w.-]*)(?:=(?P<value>.*))?", re.DOTALL)
_SECRET_OPTION = re.compile(_SECRET_NAME, re.IGNORECASE)
_PLAIN_WORDS = ("true", "false", "yes", "no", "on", "off", "none")
_ADDRESS = re.compile(
    r"\b\d{1,3}(?:\.\d{1,3}){3}\b|(?<![\w:])\[?(?:[0-9a-fA-F]{1,4}:){3,7}[0-9a-fA-F]{0,4}\]?(?![\w:])"
)
_PATH = re.compile(r"(?<![\w:/.])~?/(?:[^\s/'\"<>|:,;()]+/)*(?P<last>[^\s/'\"<>|:,;()]*)")
_SCRIPT = re.compile(r"[\w./-]+\.py")


def without_secrets(text: str) -> str:
    """Return a text without passwords, tokens and credentials in URLs."""
    text = _CREDENTIALS.sub(rf"\g<scheme>{HIDDEN}@", text)
    text = _QUERY.sub(rf"\g<url>?{HIDDEN}", text)
    text = _BEARER.sub(rf"\g<kind> {HIDDEN}", text)
    text = _NAMED.sub(rf"\g<name>{HIDDEN}", text)
    text = _KNOWN_TOKENS.sub(HIDDEN, text)
    return _LONG.sub(HIDDEN, text)


def command_line(words: Iterable[str], *, show_arguments: bool) -> str:
    """Return a command with the values of its arguments hidden, as far as they may be secrets.

    Plain numbers and words such as ``true`` stay, because they are what a comparison of runs is about, and a secret is
    hardly ever one of them. They are hidden too if their option's name speaks of a secret. ``show_arguments``: all
    values stay but secrets.
    """
    shown: list[str] = []
    before = ""
    for place, word in enumerate(words):
        option = _OPTION.fullmatch(word)
        if option is not None:
            name, value = option["name"], option["value"]
            shown.append(name if value is None else f"{name}={_value(name, value, show_arguments=show_arguments)}")
            before = name if value is None else ""
            continue
        is_program = place == 0 or before == "-m" or (not before and _SCRIPT.fullmatch(word) is not None)
        shown.append(without_secrets(word) if is_program else _value(before, word, show_arguments=show_arguments))
        before = ""
    return " ".join(shown)


def _value(option: str, value: str, *, show_arguments: bool) -> str:
    if _SECRET_OPTION.search(option):
        return HIDDEN
    is_plain = _NUMBER.fullmatch(value) is not None or value.lower() in _PLAIN_WORDS
    return without_secrets(value) if show_arguments or is_plain else HIDDEN


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
        return _ADDRESS.sub("[address]", _PATH.sub(r"[folder]/\g<last>", text))

    def command(self, words: Iterable[object], *, show_arguments: bool) -> str:
        """Return a run's command as reports and comparisons show it. See :func:`command_line`."""
        return self.text(command_line(map(str, words), show_arguments=show_arguments))


def redaction(hosts: Iterable[str], *, redact_hosts: bool) -> Redaction:
    """Return what to take out. ``hosts``: names of nodes that the run had."""
    if not redact_hosts:
        return Redaction({})
    names = {name: f"node-{number}" for number, name in enumerate(sorted(set(filter(None, hosts))))}
    own = socket.gethostname()
    for name in (own, own.partition(".")[0]):
        names.setdefault(name, "[host]")
    with contextlib.suppress(KeyError, OSError):  # the user has no name
        if getpass.getuser() != "root":  # nobody's name, and a word of its own
            names.setdefault(getpass.getuser(), "[user]")
    return Redaction(names)
