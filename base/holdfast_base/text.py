"""Texts for people: the reason of an error, a moment in the time of this machine, and texts without their secrets."""

import re
import time
from collections.abc import Iterable


def reason_of(error: BaseException) -> str:
    """Return the reason in one line. Some exceptions say nothing, such as TimeoutError: their kind is the reason."""
    return " ".join(str(error).split()) or type(error).__name__


def clock(unix_s: float) -> str:
    """Return a moment of today: ``14:03:59 UTC``."""
    return time.strftime("%H:%M:%S %Z", time.localtime(unix_s))


def moment(unix_s: float) -> str:
    """Return a moment of any day: ``2026-11-27 14:03:59 UTC``; 0, which stands for an unknown one, is ``-``."""
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(unix_s)) if unix_s > 0.0 else "-"


HIDDEN = "[hidden]"
"""What is shown for a secret."""
SECRET_NAME = (
    r"(?:pass(?:word|wd|phrase)?|secret|(?<!per[-_])token(?!s\b|s[-_.]|i[sz])|credentials?"
    r"|auth(?:orization|(?!or))|(?:api|access)?[-_]?key)"
)
"""Pattern of a name that speaks of a secret: not of a number of tokens, a tokenizer or an author."""
_SECRET_OPTION = re.compile(SECRET_NAME, re.IGNORECASE)
_CREDENTIALS = re.compile(r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]*://)[^\s/@]+@")
_QUERY = re.compile(r"(?P<url>\b[A-Za-z][A-Za-z0-9+.-]*://[^\s?#]+)\?[^\s]+")
_NAMED = re.compile(
    rf"(?P<name>[\w-]*{SECRET_NAME}[\"']?\s*[=:]\s*|--[\w-]*{SECRET_NAME}\s+)"
    r"(?:Bearer\s+|Basic\s+)?(?:\"[^\"]*\"|'[^']*'|[^\s,;&]+)",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(?P<kind>Bearer|Basic)\s+[A-Za-z0-9+/_.=-]{8,}", re.IGNORECASE)
_KNOWN_TOKENS = re.compile(
    r"\b(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[abprs]-|AKIA|ASIA|ya29\.|eyJ)[A-Za-z0-9_.+/=-]{8,}"
)
_LONG = re.compile(r"(?<![\w/.+-])(?=[\w+-]*\d)(?=[\w+-]*[A-Za-z])[\w+-]{40,}={0,2}(?![\w/.])")


def arguments_without_secrets(words: Iterable[str]) -> list[str]:
    """Return the words of a command without secrets. The value of an option that is named like one is hidden, too."""
    shown: list[str] = []
    hides_next = False
    for word in words:
        name, equals, _ = word.partition("=")
        is_option = name.startswith("-")
        is_secret = is_option and _SECRET_OPTION.search(name) is not None
        if hides_next and not is_option:
            shown.append(HIDDEN)
        else:
            shown.append(f"{name}={HIDDEN}" if is_secret and equals else without_secrets(word))
        hides_next = is_secret and not equals
    return shown


def without_secrets(text: str) -> str:
    """Return a text without passwords, tokens and credentials in URLs."""
    text = _CREDENTIALS.sub(rf"\g<scheme>{HIDDEN}@", text)
    text = _QUERY.sub(rf"\g<url>?{HIDDEN}", text)
    text = _BEARER.sub(rf"\g<kind> {HIDDEN}", text)
    text = _NAMED.sub(rf"\g<name>{HIDDEN}", text)
    text = _KNOWN_TOKENS.sub(HIDDEN, text)
    return _LONG.sub(HIDDEN, text)
