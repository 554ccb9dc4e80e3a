"""Connects agents, daemons and the command to the Redis-compatible store in one way, and says when it is unreachable.

Needs the package ``redis``; the hooks never import this module.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, cast
from urllib.parse import SplitResult, parse_qs, urlsplit

import redis
import redis.asyncio
from redis.asyncio.cluster import ClusterNode as AsyncClusterNode
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.cluster import ClusterNode
from redis.exceptions import RedisClusterException, RedisError

from holdfast_base.text import reason_of

StoreError = RedisError
"""Error that any operation raises while the store is unreachable."""

OPERATION_TIMEOUT_S = 3.0
"""Time after which a store that has not answered counts as unreachable. It is longer than any blocking read."""


_KINDS = "redis://host:port, rediss://host:port or unix:///path"
_GROUPS = "redis+sentinel://host:port,host:port/SERVICE or redis+cluster://host:port,host:port"
_SENTINELS, _CLUSTER = "redis+sentinel", "redis+cluster"


ASK_SENTINELS_S = 1.0
"""Time after which sentinels are asked again for the master. It is shorter than the time to live of a node's state."""

ASKING_TIMEOUT_S = 0.5
"""Time after which sentinels that do not answer are no longer waited for."""


def check_url(url: str) -> str:
    """Return ``url``. Raises ValueError if it cannot be used, or holds a password: argument lists are public."""
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss", "unix", _SENTINELS, _CLUSTER):
        raise ValueError(f"--redis {parts.scheme}://...: use {_KINDS}, {_GROUPS}")
    # Not the URL as it is: it may hold a password.
    if parts.password is not None or "password" in parse_qs(parts.query, keep_blank_values=True):
        raise ValueError(
            "--redis: a password in the URL can be read by every user of the machine: put it into a file and name that"
            " with --redis-password-file"
        )
    try:
        _ = _places(url) if "+" in parts.scheme else parts.port
    except ValueError:
        raise ValueError("--redis: the port is not a number from 0 to 65535: use redis://host:port") from None
    if "+" in parts.scheme:
        _check_group(parts)
    return url


def _check_group(parts: SplitResult) -> None:
    service = parts.path.removeprefix("/")
    is_complete = bool(service) and "/" not in service if parts.scheme == _SENTINELS else not service
    if not is_complete or parts.query or not all(host for host, _ in _places(parts.geturl())):
        raise ValueError(f"--redis {parts.scheme}://...: use {_GROUPS}")


def _places(url: str) -> list[tuple[str, int]]:
    """Return host and port of each server that a URL of several names. Raises ValueError for a bad port."""
    parts = urlsplit(url)
    usual = 26379 if parts.scheme == _SENTINELS else 6379
    named = [urlsplit(f"//{place}") for place in parts.netloc.rpartition("@")[2].split(",")]
    return [(one.hostname or "", one.port or usual) for one in named]


def connect(url: str, password_file: Path | None = None) -> redis.asyncio.Redis:
    """Return a client that connects at its first call, and again after every failure.

    Raises ValueError for a URL that cannot be used and OSError for an unreadable password file.
    """
    scheme, settings = urlsplit(check_url(url)).scheme, _settings(password_file, OPERATION_TIMEOUT_S)
    if scheme == _SENTINELS:
        sentinels: Any = _Sentinels(_places(url), sentinel_kwargs=_of_sentinels(settings), **settings)  # type: ignore[no-untyped-call]
        named = {"username": urlsplit(url).username, "connection_pool_class": _MasterPool}
        return cast(redis.asyncio.Redis, sentinels.master_for(_service(url), **named))
    if scheme == _CLUSTER:
        nodes = [AsyncClusterNode(*place) for place in _places(url)]
        # It has the commands that are used here, and no common base class.
        return cast(redis.asyncio.Redis, _Cluster(startup_nodes=nodes, **_cluster_settings(url, settings)))
    client: redis.asyncio.Redis = redis.asyncio.Redis.from_url(url, **settings)
    return client


def connect_blocking(
    url: str, password_file: Path | None = None, *, timeout_s: float = OPERATION_TIMEOUT_S
) -> redis.Redis:
    """Return a client for a thread without an event loop. In all else it is as that of :func:`connect`."""
    scheme, settings = urlsplit(check_url(url)).scheme, _settings(password_file, timeout_s)
    if scheme == _SENTINELS:
        sentinels: Any = _BlockingSentinels(_places(url), sentinel_kwargs=_of_sentinels(settings), **settings)  # type: ignore[no-untyped-call]
        return cast(redis.Redis, sentinels.master_for(_service(url), username=urlsplit(url).username))
    if scheme == _CLUSTER:
        nodes = [ClusterNode(*place) for place in _places(url)]  # type: ignore[no-untyped-call]
        return cast(redis.Redis, _LateCluster({"startup_nodes": nodes, **_cluster_settings(url, settings)}))
    return redis.Redis.from_url(url, **settings)


def _service(url: str) -> str:
    return urlsplit(url).path.removeprefix("/")


def _settings(password_file: Path | None, timeout_s: float) -> dict[str, Any]:
    return {
        "password": password_file.read_text().strip() if password_file else None,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": None,
    }


def _of_sentinels(settings: dict[str, Any]) -> dict[str, Any]:
    # The next sentinel is asked instead of the same one again. The password is that of the servers.
    return {name: value for name, value in settings.items() if name != "password"}


def _cluster_settings(url: str, settings: dict[str, Any]) -> dict[str, Any]:
    # One more try, by a new map of the cluster: callers have their own pause before they try again.
    return {**settings, "username": urlsplit(url).username}


@contextmanager
def _as_store_error() -> Iterator[None]:
    """Raise what the client says of a cluster that cannot be used as an error of the store, which it is not."""
    try:
        yield
    except RedisClusterException as error:
        raise redis.ConnectionError(str(error)) from error


class _Sentinels(redis.asyncio.Sentinel):
    async def discover_master(self, service_name: str) -> tuple[str, int]:
        try:
            found: tuple[str, int] = await super().discover_master(service_name)
        except redis.ConnectionError:
            raise _no_master(service_name) from None
        return found


class _MasterPool(SentinelConnectionPool):
    """Connections to the master, which leave a server soon after sentinels have chosen another one.

    A master that was cut off or paused learns only after seconds that it is none. Some daemons and agents would write
    to it, and others to the new one.
    """

    _ask_at_s = -math.inf

    async def ensure_connection(self, connection: AbstractConnection) -> None:
        now_s = time.monotonic()
        if now_s >= self._ask_at_s:
            self._ask_at_s = now_s + ASK_SENTINELS_S
            try:
                async with asyncio.timeout(ASKING_TIMEOUT_S):
                    await self.get_master_address()  # type: ignore[no-untyped-call]
            except (RedisError, OSError, TimeoutError):  # a master needs no sentinel to be used
                self._ask_at_s = now_s + 5 * ASK_SENTINELS_S
        place = getattr(connection, "host", None), getattr(connection, "port", None)
        if connection.is_connected and self.master_address not in (None, place):
            await connection.disconnect()
        await super().ensure_connection(connection)


class _BlockingSentinels(redis.Sentinel):
    def discover_master(self, service_name: str) -> tuple[str, int]:
        try:
            found: tuple[str, int] = super().discover_master(service_name)  # type: ignore[no-untyped-call]
        except redis.ConnectionError:
            raise _no_master(service_name) from None
        return found


def _no_master(service_name: str) -> redis.ConnectionError:
    # The client's own message is a page of its settings.
    return redis.ConnectionError(f"no sentinel that answers names a master of {service_name!r} that is up")


class _Cluster(redis.asyncio.RedisCluster):
    async def initialize(self, *arguments: Any, **options: Any) -> Self:
        with _as_store_error():
            await super().initialize(*arguments, **options)
        return self

    async def execute_command(self, *arguments: Any, **options: Any) -> object:
        with _as_store_error():
            return await super().execute_command(*arguments, **options)


class _BlockingCluster(redis.RedisCluster):
    def execute_command(self, *arguments: Any, **options: Any) -> object:
        with _as_store_error():
            return super().execute_command(*arguments, **options)  # type: ignore[no-untyped-call]

    def pipeline(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        pipeline: Any = super().pipeline(*arguments, **options)  # type: ignore[no-untyped-call]
        execute = pipeline.execute

        def executed(*arguments: Any, **options: Any) -> object:
            with _as_store_error():
                return execute(*arguments, **options)

        pipeline.execute = executed
        return pipeline


class _LateCluster:
    """A blocking client of a cluster that connects at its first call, as other clients do."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._client: redis.RedisCluster | None = None

    def __getattr__(self, name: str) -> object:
        if self._client is None:
            with _as_store_error():
                self._client = _BlockingCluster(**self._settings)
        return getattr(self._client, name)

    def close(self) -> None:
        """Close all connections, if there are any."""
        if self._client is not None:
            self._client.close()


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
