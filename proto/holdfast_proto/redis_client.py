"""One way to reach the Redis-compatible store, for agents, daemons and the command alike.

Needs the package ``redis``; the hooks never import this module.
"""

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import redis.asyncio
from redis.exceptions import RedisError

StoreError = RedisError
"""What any operation raises while the store is away."""

OPERATION_TIMEOUT_S = 3.0
"""A store that has not answered for so long counts as away. Longer than any blocking read."""


def check_url(url: str) -> str:
    """Return ``url``, or raise ValueError if it cannot be used or would show a password in argument lists."""
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise ValueError(f"--redis {parts.scheme}://...: use redis://host:port, rediss://host:port or unix:///path")
    if parts.password is not None or "password" in parse_qs(parts.query, keep_blank_values=True):
        raise ValueError(
            "--redis: a password in the URL can be read by every user of the machine: put it into a file and name that"
            " with --redis-password-file"
        )
    return url


def connect(url: str, password_file: Path | None = None) -> redis.asyncio.Redis:
    """Return a client that connects on first use and again after every failure.

    Raises ValueError for a URL that cannot be used and OSError for an unreadable password file.
    """
    password = password_file.read_text().strip() if password_file else None
    client: redis.asyncio.Redis = redis.asyncio.Redis.from_url(
        check_url(url),
        password=password,
        socket_timeout=OPERATION_TIMEOUT_S,
        socket_connect_timeout=OPERATION_TIMEOUT_S,
        retry=None,
    )
    return client


async def end(task: "asyncio.Future[Any]") -> None:
    """Cancel a task that uses the store, and see it end.

    Once is not always enough: before Python 3.12 ``asyncio.wait_for``, which the client uses for its timeouts,
    may swallow a cancellation that comes together with the answer.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.1)
