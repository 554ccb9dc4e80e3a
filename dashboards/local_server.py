"""A server of our own on a port that the kernel chose."""

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

_START_DEADLINE_S = 30.0
_STOP_DEADLINE_S = 10.0


@contextmanager
def listening_server(command: Sequence[str], log_path: Path) -> Iterator[str]:
    """Run ``command``, which must listen on ``127.0.0.1:0``, and yield its ``http://host:port``. Stop it at the end.

    Raises RuntimeError with the end of its log if it exits or does not listen in time.
    """
    with log_path.open("wb") as log:
        # In a session of its own: Ctrl-C is for whoever started it.
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        yield f"http://127.0.0.1:{_listening_port(process, log_path)}"
    finally:
        process.terminate()
        try:
            process.wait(_STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _listening_port(process: subprocess.Popen[bytes], log_path: Path) -> int:
    deadline = time.monotonic() + _START_DEADLINE_S
    while process.poll() is None and time.monotonic() < deadline:
        for connection in psutil.Process(process.pid).net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN:
                return int(connection.laddr.port)
        time.sleep(0.05)
    log_end = log_path.read_text(encoding="utf-8", errors="replace")[-2000:]
    raise RuntimeError(f"{process.args!r} did not listen (exit status {process.poll()}):\n{log_end}")
