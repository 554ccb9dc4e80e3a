"""Serves the console from a thread of its own, with an event loop of its own."""

import asyncio
import contextlib
import logging
import resource
import socket
import threading
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from starlette.types import Scope
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from holdfast_base.files import replace_file
from holdfast_base.server_tls import console_tls
from holdfast_base.sockets import listen
from holdfast_daemon.console.console_app import Console
from holdfast_daemon.console.serving.request_guard import Guard
from holdfast_daemon.console.serving.sessions import Sessions, load_tokens
from holdfast_daemon.console.watched import WatchedDaemon
from holdfast_proto import run_files

log = logging.getLogger(__name__)

MOST_CONNECTIONS = 64
"""Most open connections; fewer if the process may have few descriptors, which its store needs first."""
FIRST_REQUEST_S = 10.0
"""Time after which a connection without a complete request is closed."""
END_S = 5.0
_BACKLOG = 32
_PLAIN = (
    "the console serves plain HTTP to other machines: who listens on the way reads its token: set --console-cert-file"
    " and --console-key-file, or let a proxy with TLS stand before it"
)


class ConsoleServer:
    """A running console. ``port`` is the one that it listens on, also if the kernel chose it."""

    def __init__(self, watched: WatchedDaemon) -> None:
        """Start it.

        Raises OSError or TlsError, in one line that names the setting, if port, tokens or certificate cannot be used.
        """
        options = watched.options
        tls = console_tls(options.console_cert_file, options.console_key_file, options.console_client_ca)
        sessions = Sessions(load_tokens(options.console_tokens))
        remembered = None if options.console_port else run_files.console_port(options.directory)
        listener = _listen_again(options.console_address, remembered) or _listen(
            options.console_address, options.console_port
        )
        self.port = int(listener.getsockname()[1])
        if remembered is not None and not watched.ended:
            with contextlib.suppress(OSError):  # without the file, the next start only takes another port
                replace_file(remembered, str(self.port).encode(), mode=0o600)
        self._console = Console(watched, sessions, self.port)
        connections = _Connections()
        address = f"[{options.console_address}]" if ":" in options.console_address else options.console_address
        scheme = "http" if tls is None else "https"
        hosts = (f"{scheme}://{address}", *options.console_hosts)
        if tls is None and not ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback:
            log.warning("%s", _PLAIN)
        config = Config(
            Guard(self._console.app(), hosts, connections.drop, scheme),
            loop="asyncio",
            http=_protocol(connections),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=1,
            h11_max_incomplete_event_size=16 * 1024,
        )
        config.load()
        config.ssl = tls.renewing_context() if tls is not None else None
        for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # errors are logged by the guard, in our words
        self._server = Server(config)
        self._listener = listener
        self._thread = threading.Thread(target=self._serve, name="console", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End all streams, close the port, and wait until the thread has ended."""
        self._server.should_exit = True
        self._thread.join(END_S)
        if self._thread.is_alive():
            self._server.force_exit = True
            self._thread.join(END_S)

    def _serve(self) -> None:
        try:
            with asyncio.Runner(loop_factory=_Loop) as runner:
                runner.run(self._run())
        except Exception as error:
            log.error("the console has ended: %r", error, exc_info=error)
        finally:
            self._listener.close()

    async def _run(self) -> None:
        asyncio.get_running_loop().set_exception_handler(_log_quietly)
        ending = asyncio.create_task(self._end_streams())
        try:
            await self._server.serve(sockets=[self._listener])
        finally:
            ending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ending

    async def _end_streams(self) -> None:
        """End the streams before the server waits for them."""
        while not self._server.should_exit:
            await asyncio.sleep(0.05)
        self._console.feeds.close()


class _Loop(asyncio.SelectorEventLoop):
    """The loop of the console. Without it, a client may take a minute for a TLS handshake, and hold a descriptor."""

    async def create_server(self, *arguments: Any, **options: Any) -> asyncio.Server:
        """Create a server with a limit on the time of a handshake, which uvicorn cannot set."""
        if options.get("ssl") is not None:
            options["ssl_handshake_timeout"] = FIRST_REQUEST_S
        server: asyncio.Server = await super().create_server(*arguments, **options)
        return server


class _Connections:
    """The open connections, by the address of the client."""

    def __init__(self) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.most = max(4, min(MOST_CONNECTIONS, soft // 8))
        self._open: dict[tuple[str, int], H11Protocol] = {}

    def drop(self, scope: Scope) -> None:
        """End the connection of a request, whatever it still has to send."""
        found = self._open.get(tuple(scope["client"])) if scope.get("client") else None
        if found is not None:
            found.transport.abort()

    def enter(self, protocol: H11Protocol) -> bool:
        """Take a connection in; return whether there is room. The oldest one that asks for nothing makes room.

        Nor does one ask for anything as long as its body has not come: without a token, anybody can hold many of them.
        """
        if len(self._open) >= self.most:
            idle = next((one for one in self._open.values() if _asks_nothing(one)), None)
            if idle is None:
                return False
            idle.transport.abort()
            self.leave(idle)
        if protocol.client is not None:
            self._open[protocol.client] = protocol
        return True

    def leave(self, protocol: H11Protocol) -> None:
        """Forget a connection."""
        if protocol.client is not None and self._open.get(protocol.client) is protocol:
            del self._open[protocol.client]


def _asks_nothing(protocol: H11Protocol) -> bool:
    return protocol.cycle is None or protocol.cycle.response_complete or protocol.cycle.more_body


def _protocol(connections: _Connections) -> type[H11Protocol]:
    """Return uvicorn's protocol with limits on connections: it has none for those that send no request."""

    class LimitedProtocol(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if not connections.enter(self):
                transport.abort()
                return
            self._patience = asyncio.get_running_loop().call_later(FIRST_REQUEST_S, self._check_request)

        def connection_lost(self, exc: Exception | None) -> None:
            connections.leave(self)
            if hasattr(self, "_patience"):
                self._patience.cancel()
            super().connection_lost(exc)

        def _check_request(self) -> None:
            if self.cycle is None:
                self.transport.abort()

    return LimitedProtocol


def _listen_again(address: str, remembered: Path | None) -> socket.socket | None:
    """Return a socket on the port of the last start; None if there is none, or another process has it now.

    So an open page, a bookmark and a tunnel still lead to the console after a restart of the daemon.
    """
    if remembered is None:
        return None
    try:
        port = int(remembered.read_text())
        return _listen(address, port) if 1024 <= port <= 65535 else None
    except (OSError, ValueError):
        return None


def _listen(address: str, port: int) -> socket.socket:
    try:
        return listen(address, port, _BACKLOG)
    except OSError as error:
        raise OSError(
            f"cannot serve the console on {address}:{port}: {error.strerror}: choose another --console-port (0: any"
            " free one), or --no-console"
        ) from error


def _log_quietly(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what asyncio reports, without a traceback: clients that vanish, and a lack of descriptors."""
    log.debug("console: %s: %r", context.get("message"), context.get("exception"))
