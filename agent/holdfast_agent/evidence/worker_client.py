"""Asks torch's worker server in a rank. It dumps recorders without the interpreter's lock, even if the rank holds that.

Only ``dump_traceback`` waits for the lock (seen with torch 2.13 and 2.14). The server speaks HTTP on a unix socket: a
POST to ``/handler/NAME``.
"""

import asyncio
import contextlib
import os

from holdfast_base import sockets
from holdfast_base.text import reason_of

LARGEST_ANSWER_BYTES = 64 << 20
_LARGEST_HEAD_BYTES = 16 << 10
_READ_BYTES = 1 << 20


class WorkerServerError(Exception):
    """The server gave no usable answer. The message is one line."""


async def ask(path: str, pid: int, handler: str, patience_s: float) -> bytes:
    """Return the answer of one handler, of up to 64 MiB.

    Args:
        path: unix socket of the server.
        pid: process of the rank. An answer of another process, or of another user's, is not asked for.
        handler: name and parameters, e.g. ``dump_nccl_trace_json?onlyactive=true``.
        patience_s: time for all of it.

    Raises:
        WorkerServerError: what was wrong.
    """
    try:
        async with asyncio.timeout(patience_s):
            return await _ask(path, pid, handler)
    except TimeoutError:
        raise WorkerServerError(f"torch's worker server did not answer within {patience_s:g} s") from None
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
        raise WorkerServerError(f"torch's worker server cannot be asked: {reason_of(error)}") from None


async def _ask(path: str, pid: int, handler: str) -> bytes:
    reader, writer = await asyncio.open_unix_connection(path, limit=_LARGEST_HEAD_BYTES)
    try:
        found = sockets.peer(writer.get_extra_info("socket"))
        if found != sockets.Peer(pid, os.geteuid()):
            raise WorkerServerError(f"{path} is served by process {found.pid} of user {found.uid}, not by the rank")
        # Version 1.0: the server closes the connection after its answer, and sends it in one piece.
        writer.write(f"POST /handler/{handler} HTTP/1.0\r\nHost: rank\r\nContent-Length: 0\r\n\r\n".encode("ascii"))
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        body = await _body(reader)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    status = head.partition("\r\n")[0].split(maxsplit=2)
    if len(status) < 2 or not status[0].startswith("HTTP/"):
        raise WorkerServerError("torch's worker server gave no HTTP answer")
    if status[1] != "200":
        said = " ".join(body[:200].decode(errors="replace").split())
        raise WorkerServerError(f"torch's worker server answered {handler} with {status[1]}: {said}")
    length = _length(head)
    if length is not None and len(body) != length:
        raise WorkerServerError(f"torch's worker server sent {len(body)} of {length} bytes")
    return body


async def _body(reader: asyncio.StreamReader) -> bytes:
    parts, size = [], 0
    while part := await reader.read(_READ_BYTES):
        size += len(part)
        if size > LARGEST_ANSWER_BYTES:
            raise WorkerServerError(f"the answer is larger than {LARGEST_ANSWER_BYTES >> 20} MiB")
        parts.append(part)
    return b"".join(parts)


def _length(head: str) -> int | None:
    for line in head.split("\r\n")[1:]:
        name, _, value = line.partition(":")
        if name.strip().lower() == "content-length":
            return int(value)
    return None
