"""TLS in front of a server that has none: it lets in clients with a certificate, and forwards what they send."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path


@contextlib.asynccontextmanager
async def tls_proxy(certificates: Path, socket: Path) -> AsyncIterator[int]:
    """Yield the port of a proxy for the server on a unix socket. ``certificates``: of `holdfast certs init`."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificates / "ca.crt")
    context.load_cert_chain(certificates / "server.crt", certificates / "server.key")
    context.verify_mode = ssl.CERT_REQUIRED
    connections: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(_forward(reader, writer, socket))
        connections.add(task)
        task.add_done_callback(connections.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=context)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, socket: Path) -> None:
    store_reader, store_writer = await asyncio.open_unix_connection(socket)
    try:
        await asyncio.gather(_copy(reader, store_writer), _copy(store_reader, writer))
    finally:
        writer.close()
        store_writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the end, and end the other side too."""
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()
