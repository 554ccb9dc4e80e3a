"""A debugger that holds processes: ``python tracer.py SECONDS PID...`` stops all their threads and releases them."""

import ctypes
import os
import sys
import time
from pathlib import Path

_ATTACH, _DETACH = 16, 17
_WALL = 0x40000000
_POLL_S = 0.1

_ptrace = ctypes.CDLL(None, use_errno=True).ptrace
_ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)


def attach(pid: int) -> list[int]:
    """Stop all threads of a process; return their ids."""
    threads = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        thread = int(task.name)
        if _ptrace(_ATTACH, thread, None, None):
            raise OSError(ctypes.get_errno(), f"cannot trace thread {thread} of {pid}")
        os.waitpid(thread, _WALL)
        threads.append(thread)
    return threads


def main(for_s: float, pids: list[int]) -> None:
    """Hold processes until the time is over or all of them have been killed."""
    threads = [thread for pid in pids for thread in attach(pid)]
    print("attached", flush=True)
    until_s = time.monotonic() + for_s
    while time.monotonic() < until_s:
        time.sleep(_POLL_S)
        try:
            while os.waitpid(-1, _WALL | os.WNOHANG)[0]:  # a killed process can only be reaped after this
                pass
        except ChildProcessError:
            return  # all of them have been killed
    for thread in threads:
        _ptrace(_DETACH, thread, None, None)


if __name__ == "__main__":
    main(float(sys.argv[1]), [int(pid) for pid in sys.argv[2:]])
