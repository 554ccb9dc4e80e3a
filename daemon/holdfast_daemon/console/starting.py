"""Starts the console if it can be had. A daemon without it leads its runs all the same."""

import logging
from importlib.util import find_spec
from typing import Protocol

from holdfast_base.server_tls import TlsError
from holdfast_daemon.console.watched import WatchedDaemon

log = logging.getLogger(__name__)

MISSING = "no console: `pip install 'holdfast-torch[console]'` brings the packages that it needs"


class RunningConsole(Protocol):
    """A console that serves."""

    port: int

    def close(self) -> None:
        """End it."""


def has_packages() -> bool:
    """Return whether the packages that a console needs are installed."""
    return all(find_spec(name) is not None for name in ("starlette", "uvicorn"))


def start_console(watched: WatchedDaemon) -> RunningConsole | None:
    """Return a console that serves; None, with one line in the log, if there is none. It never raises."""
    if not watched.options.console:
        return None
    if not has_packages():
        log.warning("%s", MISSING)
        return None
    try:
        from holdfast_daemon.console.console_server import ConsoleServer

        return ConsoleServer(watched)
    except Exception as error:  # noqa: BLE001 (no console is worth a run that nobody leads)
        log.error("no console: %s", error if isinstance(error, OSError | TlsError) else repr(error))
        return None
