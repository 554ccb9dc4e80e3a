"""Becomes another program that gets a signal when its parent dies: ``die_with_parent.py PARENT_PID SIGNAL COMMAND...``.

This is a script, not a ``preexec_fn``, because code between fork and exec is unsafe once the
parent has threads. Note that Linux takes "parent" to be the thread that forked.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def wrap(command: Sequence[str], end_signal: signal.Signals) -> list[str]:
    """Return ``command`` preceded by this script. The pid stays that of the command."""
    return [sys.executable, "-I", "-S", str(Path(__file__)), str(os.getpid()), str(int(end_signal)), *command]


def _become(parent_pid: int, end_signal: int, command: list[str]) -> None:
    signal.signal(end_signal, signal.SIG_DFL)  # shells make background processes ignore SIGINT
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, end_signal) != 0:
        sys.exit(f"holdfast: prctl(PR_SET_PDEATHSIG): {os.strerror(ctypes.get_errno())}")
    if os.getppid() == parent_pid:  # else it died before the call above
        os.execvp(command[0], command)


if __name__ == "__main__":
    _become(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
