"""Torch's worker server in this rank: it dumps recorders from C++ threads, without the interpreter's lock.

It is started only in ranks with groups on devices: it has at least 9 threads, and one for each core less one on larger
machines. Measured with torch 2.13 to 2.15: 0.5 ms to start, 0.6 MB with 9 threads, no CPU time while nobody asks.
"""

import contextlib
import ctypes
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

from holdfast_hooks.hook_errors import OnceLog
from holdfast_proto.run_files import worker_server_socket

ELASTIC_SOCKET = "TORCH_WORKER_SERVER_SOCKET"
"""Variable with the socket of the server that ``torch.distributed.elastic.control_plane`` starts."""

_LONGEST_PATH = 107
"""Bytes of a unix socket's path that the kernel takes."""

_WITHOUT = "the recorder of a rank whose interpreter hangs cannot be read"


class WorkerServer:
    """Starts the server once it is needed, and closes it. It must not run before the rank's process has been forked.

    Args:
        agent: gRPC target of the agent's sessions, ``unix:/path``. The server's socket is created next to it.
    """

    def __init__(self, agent: str, once: OnceLog, environment: Mapping[str, str] = os.environ) -> None:
        self.path = ""
        """Socket of the server; "": there is none."""
        self._agent = agent
        self._once = once
        self._environment = environment
        self._own_path = ""
        self._pid = 0

    def start(self) -> None:
        """Start the server, or find the one that elastic has started. Later calls do nothing."""
        if self._pid:
            return
        self._pid = os.getpid()
        try:
            self.path = self._elastic_socket() or self._serve()
        except (OSError, RuntimeError, AttributeError, TypeError) as error:
            self._once.warn(f"torch's worker server does not run, so {_WITHOUT}", error)

    def close(self) -> None:
        """Remove the socket, so that nobody can ask the server any more. Its idle threads end with the process.

        Torch's own ``shutdown()`` is not called: it waits for its threads with no limit. It waits forever if a handler
        hangs, and if the server was started a moment before (seen with torch 2.13).
        """
        path, self._own_path = self._own_path, ""
        if path and os.getpid() == self._pid:
            self.path = ""
            with contextlib.suppress(OSError):
                Path(path).unlink()

    def _elastic_socket(self) -> str:
        """Return the socket of elastic's server; "" if it has started none."""
        path = self._environment.get(ELASTIC_SOCKET, "")
        with contextlib.suppress(OSError):
            return path if path and stat.S_ISSOCK(Path(path).stat().st_mode) else ""
        return ""

    def _serve(self) -> str:
        kind, _, session = self._agent.partition(":")
        if kind != "unix":
            raise OSError("the agent has no runtime directory for the server's socket")
        path = worker_server_socket(Path(session), self._pid)
        if len(os.fsencode(path)) > _LONGEST_PATH:
            raise OSError(f"{path} is longer than {_LONGEST_PATH} bytes: choose a shorter --runtime-directory")
        if path.parent.stat().st_mode & 0o077 or path.parent.stat().st_uid != os.geteuid():
            raise PermissionError(f"{path.parent} is open to others: choose another --runtime-directory")
        path.unlink(missing_ok=True)  # of a process that had this pid before
        bindings = sys.modules["torch"]._C._distributed_c10d
        server = bindings._WorkerServer(str(path))
        # Its destructor waits for its threads like shutdown(), and a process that this one forks has none of them. So
        # one reference is never given back.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))
        path.chmod(0o600)
        self._own_path = str(path)
        return self._own_path
