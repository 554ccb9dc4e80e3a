"""Connects to Redis and publishes a run: the only thing that the command writes there."""

import ssl
from collections.abc import Callable, Iterable
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, urlsplit

import redis

from holdfast_base import redis_client
from holdfast_base.server_tls import load
from holdfast_cli.errors import SettingsError
from holdfast_proto import keys
from holdfast_proto.run_key import RunKey, RunKeyError, RunKeyFile
from holdfast_proto.v1.store_pb2 import RunSpec

_TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


def check_url(url: str) -> str:
    """Return ``url``, or raise SettingsError, also for files of TLS. The message never repeats a password of a URL."""
    try:
        redis_client.check_url(url)
        _check_tls(urlsplit(url))
    except ValueError as error:
        raise SettingsError(str(error)) from None
    return url


def _check_tls(parts: SplitResult) -> None:
    """Raise ValueError for files that cannot be used, or names that the client would fail on when it connects."""
    given = {name: value for name, value in parse_qsl(parts.query, keep_blank_values=True) if name.startswith("ssl_")}
    if given and parts.scheme != "rediss":
        raise ValueError(f"--redis {parts.scheme}://...?{next(iter(given))}=: TLS needs rediss://host:port")
    for name in given:
        if name not in (*_TLS_FILES, "ssl_check_hostname"):
            raise ValueError(f"--redis: {name[:60]} is unknown: use {', '.join(_TLS_FILES)} or ssl_check_hostname")
    files = [(f"--redis: {name}", Path(given[name])) for name in _TLS_FILES if name in given]
    pair = files[-2:] if {"ssl_certfile", "ssl_keyfile"} <= set(given) else []
    if not pair and {"ssl_certfile", "ssl_keyfile"} & set(given):
        raise ValueError("--redis: ssl_certfile and ssl_keyfile belong together: set both, or neither")
    load(ssl.create_default_context(), pair, [one for one in files if one not in pair])


def connect(url: str, password_file: Path | None = None, *, timeout_s: float = 5.0) -> "redis.Redis":
    """Return a client of ``url``; nothing is sent yet. Raises SettingsError if the password cannot be read."""
    try:
        return redis_client.connect_blocking(check_url(url), password_file, timeout_s=timeout_s)
    except OSError as error:
        raise SettingsError(f"--redis-password-file {password_file}: {error.strerror}") from None


def publish_run(client: "redis.Redis", spec: RunSpec, key_file: RunKeyFile, make_key: Callable[[], None]) -> None:
    """Write the spec of a new run and hand the run to the daemons, in one transaction.

    Removes what an earlier run of this name left, except its fencing number. ``make_key``: puts the key of the new run
    into ``key_file``. Raises SettingsError if the earlier run still has agents, or if the key cannot be used, and
    redis.RedisError if Redis cannot be reached.
    """
    alive = live_nodes(client, spec.run)
    if alive:
        raise SettingsError(
            f"run {spec.run} already runs on {', '.join(alive)} with this Redis: choose another --run, "
            f"or stop it with `holdfast stop --run {spec.run}`"
        )
    seal = key_of(key_file, make_key).seal
    leftovers = [keys.state(spec.run), keys.events(spec.run), keys.incidents(spec.run), keys.nodes(spec.run)]
    # Nodes that the set has forgotten, such as spares, have keys too. They hold the end of the earlier run, and the
    # rendezvous of its generations.
    for pattern in (keys.commands(spec.run, "*"), f"{keys.rendezvous(spec.run, 0)[:-1]}*"):
        leftovers += list(client.scan_iter(match=pattern, count=1000))
    transaction = client.pipeline(transaction=True)
    transaction.delete(*leftovers)
    transaction.set(keys.spec(spec.run), seal.close(keys.spec(spec.run), spec.SerializeToString()))
    transaction.execute()
    client.sadd(keys.RUNS, spec.run)  # no hash tag: on a cluster it is on another node


def key_of(key_file: RunKeyFile, make: Callable[[], None]) -> RunKey:
    """Return the key in a file after ``make`` has put it there. Raises SettingsError."""
    try:
        make()
        return key_file.read()
    except OSError as error:
        problem = f"{key_file.path}: {error.strerror}"
        raise SettingsError(f"the run's key {problem}: name another file with --run-key-file") from None
    except RunKeyError as error:
        raise SettingsError(str(error)) from None


def live_nodes(client: "redis.Redis", run: str) -> list[str]:
    """Return the nodes of a run whose agents are alive, sorted. Raises redis.RedisError."""
    names = [name.decode(errors="replace") for name in _members(client, keys.nodes(run))]
    return sorted(name for name in names if client.exists(keys.node(run, name)))


def _members(client: "redis.Redis", key: str) -> Iterable[bytes]:
    # redis-py types its answers for the asynchronous client too.
    members: Iterable[bytes] = client.smembers(key)  # type: ignore[assignment]
    return members
