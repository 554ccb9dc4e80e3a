"""A server that speaks as NCCL's RAS does, and one of its reports."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping

# What the printf formats of NCCL 2.30.7 write for a communicator of two ranks, one of them missing:
# src/ras/client_support.cc, jsonWriteHeader to jsonWriteFooter. The values are those of ras.rst of that version.
REPORT = b"""{
  "nccl_version": "2.30.7",
  "cuda_runtime_version": 13000,
  "cuda_driver_version": 13000,
  "timestamp": "2025-12-19 13:06:53",
  "communicators_count": 1,
  "communicators": [
    {
      "hash": "0xae94423cfbb2ef4a",
      "secondary_hash": "0xb7e7187447156001:0xb8242ed28a71381e",
      "size": 2,
      "ranks_count": 1,
      "missing_ranks_count": 1,
      "ranks": [
        {
          "rank": 0,
          "host": "172.16.64.245",
          "pid": 1524344,
          "cuda_dev": 0,
          "nvml_dev": 4,
          "status": {
            "init_state": 0,
            "async_error": 6,
            "finalize_called": false,
            "destroy_flag": false,
            "abort_flag": true
          },
          "collective_counts": {
            "Broadcast": 1,
            "Reduce": 0,
            "AllGather": 0,
            "ReduceScatter": 0,
            "AllReduce": 41
          }
        }
      ],
      "missing_ranks": [
        {
          "rank": 1,
          "host": "172.16.64.245",
          "pid": 1524345,
          "cuda_dev": 1,
          "nvml_dev": 5,
          "status": {
            "unresponsive": true,
            "considered_dead": false
          }
        }
      ]
    }
  ],
  "ras": {
    "collection_time_sec": 2.051,
    "timeouts_count": 1
  }
}
"""

Behaviour = Callable[[socket.socket], None]


@contextlib.contextmanager
def served(behaviour: Behaviour) -> Iterator[tuple[str, int]]:
    """Yield the address of a server that treats each connection, one after the other, in one way."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                behaviour(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listening.getsockname()
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()


def speaking(report: bytes, *, said: list[str] | None = None, answers: Mapping[str, bytes] | None = None) -> Behaviour:
    """Return a server with the commands of NCCL 2.30.7, rasClientEventLoop of src/ras/client_support.cc."""

    def serve(connection: socket.socket) -> None:
        for command in connection.makefile("r", encoding="ascii"):
            name = command.strip().lower()
            if said is not None:
                said.append(command)
            special = [answer for start, answer in (answers or {}).items() if name.startswith(start)]
            if special:
                connection.sendall(special[0])
            elif name.startswith("client protocol "):
                connection.sendall(b"SERVER PROTOCOL 2\n")
            elif name.startswith("timeout ") or name in ("set format json", "set format text"):
                connection.sendall(b"OK\n")
            elif name in ("status", "verbose status"):
                connection.sendall(report)
                return
            else:
                connection.sendall(f"ERROR: Unknown command {command.strip()}\n".encode())

    return serve
