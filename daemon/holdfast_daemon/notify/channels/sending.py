"""What all channels have in common: how an attempt to send can end, and what an HTTP answer means."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from holdfast_base.files import SecretError, read_secret
from holdfast_base.http_post import HttpError, check_http_url, post
from holdfast_daemon.notify.message import Message

HTTP_TIMEOUT_S = 10.0
_REDIRECTS = range(300, 400)
_TEMPORARY = (408, 429)
"""Answers of the 4xx class that may be different later."""


class DeliveryRefusedError(Exception):
    """The message will never be taken: no other attempt makes sense. The text is one line without any secret."""


class DeliveryDelayedError(Exception):
    """The attempt failed, and a later one may succeed. The text is one line without any secret."""

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s
        """Seconds that the service asks to wait; None: it does not say."""


class Channel(Protocol):
    """One way to reach people. It has no state, and may be used from any thread."""

    def send(self, message: Message) -> None:
        """Send a message. Blocks for a bounded time. Raises DeliveryRefusedError or DeliveryDelayedError."""


def secret_of(path: Path) -> str:
    """Return a secret. Raises DeliveryDelayedError: a file can appear again, for example after a new login."""
    try:
        return read_secret(path)
    except SecretError as error:
        raise DeliveryDelayedError(str(error)) from None


def secret_url(path: Path) -> str:
    """Return the URL that a file holds. Raises DeliveryDelayedError."""
    url = secret_of(path)
    problem = check_http_url(url)
    if problem:
        raise DeliveryDelayedError(f"{path}: the URL in it cannot be used: {problem}")
    return url


def post_checked(url: str, body: bytes, headers: Mapping[str, str]) -> None:
    """POST to a service. Raises DeliveryRefusedError or DeliveryDelayedError unless it answers with success."""
    try:
        answer = post(url, body, headers, timeout_s=HTTP_TIMEOUT_S)
    except HttpError as error:
        raise DeliveryDelayedError(str(error)) from None
    if 200 <= answer.status < 300:
        return
    if answer.status in _REDIRECTS:
        raise DeliveryRefusedError(f"it answers {answer.status}: redirects are not followed: name the new URL")
    if answer.status >= 500 or answer.status in _TEMPORARY:
        raise DeliveryDelayedError(f"it answers {answer.status}", answer.retry_after_s)
    raise DeliveryRefusedError(f"it answers {answer.status}")
