"""Shows in ``ps`` and ``top`` what a process is.

The kernel keeps two names of a process: a short one (``ps -e``, ``top``) and its arguments (``ps aux``). The package
setproctitle would also write over the environment, by which a run's processes are found after a crash
(``/proc/PID/environ``). So this module writes into the room of the arguments alone.
"""

import ctypes
from contextlib import suppress
from pathlib import Path

LONGEST_NAME = 15
"""Bytes of a short name that the kernel keeps."""

_ARGUMENTS_BEGIN, _ARGUMENTS_END = 45, 46
"""Places of arg_start and arg_end in /proc/PID/stat, counted from the field after the name: see proc(5)."""


def name_process(name: str) -> None:
    """Set the short name of the process, which is that of its main thread.

    Threads that the main thread starts later inherit it.
    """
    with suppress(OSError):
        Path("/proc/self/comm").write_bytes(name.encode(errors="replace")[:LONGEST_NAME])


def title_process(title: str) -> None:
    """Show ``title`` in place of the arguments. It is cut off where their room ends."""
    with suppress(OSError, ValueError, IndexError):  # a kernel whose files look different
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        begin, end = int(fields[_ARGUMENTS_BEGIN]), int(fields[_ARGUMENTS_END])
        shown = Path("/proc/self/cmdline").read_bytes()[: end - begin]
        if end - begin < 2 or ctypes.string_at(begin, len(shown)) != shown:
            return  # the kernel hides the place, or it is not what we take it for
        # A last byte that is not zero makes the kernel show the text up to the first zero, and nothing after it.
        text = title.encode(errors="replace")[: end - begin - 2].ljust(end - begin - 1, b"\0") + b"."
        ctypes.memmove(begin, text, len(text))
