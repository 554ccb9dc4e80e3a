"""Connects agents, daemons and the command to the Redis-compatible store in one way, and says when it is unreachable.

Needs the package ``redis``; the hooks never import this module.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import redis
import redis.asyncio
from redis.exceptions import RedisError

from holdfast_base.text import reason_of

StoreError = RedisError
"""Error that any operation raises while the store is unreachable."""

OPERATION_TIMEOUT_S = 3.0
"""Time after which a store that has not answered counts as unreachable. It is longer than any blocking read."""


def check_url(url: str) -> str:
    """Return ``url``. Raises ValueError if it cannot be used, or holds a password: argument lists are public."""
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise ValueError(f"--redis {parts.scheme}://...: use redis://host:port, rediss://host:port or unix:///path")
    try:
        _ = parts.port
    except ValueError:
        # Not the URL as it is: it may hold a password.
        raise ValueError("--redis: the port is not a number from 0 to 65535: use redis://host:port") from None
    if parts.password is not None or "password" in parse_qs(parts.query, keep_blank_values=True):
        raise ValueError(
            "--redis: a password in the URL can be read by every user of the machine: put it into a file and name that"
            " with --redis-password-file"
        )
    return url


def connect(url: str, password_file: Path | None = None) -> redis.asyncio.Redis:
    """Return a client that connects at its first call, and again after every failure.

    Raises ValueError for a URL that cannot be used and OSError for an unreadable password file.
    """
    client: redis.asyncio.Redis = redis.asyncio.Redis.from_url(check_url(url), **_settings(password_file))
    return client


def connect_blocking(url: str, password_file: Path | None = None) -> redis.Redis:
    """Return a client for a thread without an event loop. In all else it is as that of :func:`connect`."""
    return redis.Redis.from_url(check_url(url), **_settings(password_file))


def _settings(password_file: Path | None) -> dict[str, Any]:
    return {
        "password": password_file.read_text().strip() if password_file else None,
        "socket_timeout": OPERATION_TIMEOUT_S,
        "socket_connect_timeout": OPERATION_TIMEOUT_S,
        "retry": None,
    }


async def end(task: "asyncio.Future[Any]") -> None:
    """Cancel a task that uses the store, and wait until it ends.

    One cancellation is not always enough. The client uses ``asyncio.wait_for`` for its timeouts, which before Python
    3.12 may swallow a cancellation that comes together with the answer.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.1)


QUIET_S = 5.0
"""Time without a failure after which an outage is over: a store that comes and goes must not fill a log.

A store may also answer reads and refuse writes.
"""


class StoreOutage:
    """Reports the outages of one process's store in its log.

    ``where``: the store's URL. ``effect``: completes "Redis at URL cannot be used (why): ...".
    """

    def __init__(
        self, log: logging.Logger, where: str, effect: str, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._where = where
        self._effect = effect
        self._monotonic_s = monotonic_s
        self._begun_s: float | None = None
        """Time of the first failure of the outage; None: there is none."""
        self._failed_s = 0.0
        """Time of the newest failure."""
        self._answered_s: float | None = None
        """Time of the first answer since then."""

    def failed(self, error: Exception) -> None:
        """Note an operation that the store has not carried out."""
        self._failed_s, self._answered_s = self._monotonic_s(), None
        if self._begun_s is None:
            self._begun_s = self._failed_s
            why = reason_of(error).rstrip(".")
            self._log.warning("Redis at %s cannot be used (%s): %s", self._where, why, self._effect)

    def answered(self) -> None:
        """Note an operation that the store has carried out."""
        if self._begun_s is None:
            return
        now_s = self._monotonic_s()
        if self._answered_s is None:
            self._answered_s = now_s
        if now_s - self._failed_s >= QUIET_S:
            self._log.warning(
                "Redis at %s can be used again, after %.1f s", self._where, self._answered_s - self._begun_s
            )
            self._begun_s = None
