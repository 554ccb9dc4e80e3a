"""Identifies processes, checks whether they live and how they ended, kills them, names them and lowers their priority.

A pid alone does not identify a process for long, because the kernel uses pids again. So every process that is signalled
here is identified by its pid and its start time, and the start time is checked right before.
"""

import contextlib
import ctypes
import errno
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36

_LONGEST_EXEC_S = 5.0

_GONE = (errno.ENOENT, errno.ESRCH)

# Fields of /proc/PID/stat from the third on.
_STATE, _PARENT, _GROUP, _SESSION, _START, _MEMORY, _ENVIRONMENT_END, _EXIT_STATUS = 0, 1, 2, 3, 19, 20, 48, 49


class AgentError(Exception):
    """The agent cannot continue. The message is one line for people."""


def become_subreaper() -> None:
    """Make this process the parent of its descendants' orphans: it can reap ranks whose warm parent has died.

    Raises OSError.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def look_up(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the third (state) on, or None if there is no such process.

    Raises OSError if the file cannot be read now: this process may be out of descriptors.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")  # a program may be called anything
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise
    return text.rpartition(")")[2].split() or None


def stat_fields(pid: int) -> list[str] | None:
    """Return the fields as :func:`look_up` does, but None if they cannot be read now."""
    try:
        return look_up(pid)
    except OSError:
        return None


def process_state(pid: int) -> str:
    """Return the state of a process as in proc(5), R, S, D, T, t or Z; empty if there is no such process.

    Raises OSError if it cannot be read now.
    """
    fields = look_up(pid)
    return fields[_STATE] if fields else ""


def environment(pid: int) -> list[bytes]:
    """Return the variables that a process was started with, each as NAME=VALUE. Raises OSError.

    While the kernel puts a new program in place of the old one, the file is empty, although the program's parent may go
    on already. So an empty one is read again when the program has an environment, or after some seconds.
    """
    path = Path(f"/proc/{pid}/environ")
    variables = path.read_bytes()
    if not variables:
        deadline = time.monotonic() + _LONGEST_EXEC_S
        while _is_between_programs(pid) and time.monotonic() < deadline:
            time.sleep(0.001)
        variables = path.read_bytes()
    return variables.split(b"\0")


def _is_between_programs(pid: int) -> bool:
    fields = stat_fields(pid)
    return fields is not None and fields[_MEMORY] != "0" and fields[_ENVIRONMENT_END] == "0"


def start_ticks(pid: int) -> int:
    """Return the start time of a process in clock ticks since boot; 0 if there is no such process.

    Pid and start time together identify a process until the next boot.
    """
    fields = stat_fields(pid)
    return int(fields[_START]) if fields else 0


def is_alive(pid: int, ticks: int) -> bool:
    """Return whether the process that started at ``ticks`` still runs (a zombie does not).

    If this process cannot read /proc, for lack of descriptors, it takes no process for dead.
    """
    try:
        fields = look_up(pid)
    except OSError:
        return ticks != 0 and _exists(pid)
    return fields is not None and int(fields[_START]) == ticks and fields[_STATE] not in "ZX"


def start_ticks_of_child(pid: int, parent: int, parent_ticks: int) -> int:
    """Return the start time of a process if it runs as this user and is a child of ``parent``; else 0.

    If the parent is gone, any later process of this user may have been its child, and counts as one. Raises OSError if
    /proc cannot be read now.
    """
    fields = look_up(pid)
    if fields is None or int(fields[_START]) < parent_ticks or not _is_ours(pid):
        return 0
    if int(fields[_PARENT]) != parent and is_alive(parent, parent_ticks):
        return 0
    return int(fields[_START])


def failure_of_zombie(pid: int, ticks: int) -> int | None:
    """Return the wait status of a failed process that another parent has not reaped yet.

    None if it is reaped, or it runs, or its status is 0. The kernel also shows 0 to readers without the right to know.
    """
    fields = stat_fields(pid)
    if fields is None or int(fields[_START]) != ticks or fields[_STATE] != "Z":
        return None
    return int(fields[_EXIT_STATUS]) or None


def send_signal(pid: int, ticks: int, number: signal.Signals) -> bool:
    """Signal the process that started at ``ticks``. Return whether it existed.

    The descriptor is opened before the start time is checked. So the process with that start time is the one that the
    descriptor refers to, even if the pid is used again in between.
    """
    if not ticks or pid <= 1:
        return False
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    except OSError:  # a sandbox may forbid it
        descriptor = None
    try:
        if start_ticks(pid) != ticks:
            return False
        if descriptor is None:
            os.kill(pid, number)
        else:
            signal.pidfd_send_signal(descriptor, number)
    except OSError:
        return False
    finally:
        if descriptor is not None:
            os.close(descriptor)
    return True


def kill_session(pid: int, ticks: int) -> None:
    """Send SIGKILL to the process that started at ``ticks`` and to the process group that it leads.

    A process that has its pid now, but another start time, is left alone.
    """
    kill_group(pid, ticks)
    send_signal(pid, ticks, signal.SIGKILL)


def kill_group(pid: int, ticks: int) -> None:
    """Send SIGKILL to the process group that the process of ``ticks`` leads, or has led if it is gone.

    Such a group may hold workers of a data loader. The kernel does not use a pid again while a group has it as its
    number. So a process with this pid and another start time proves that the group is empty. Without a process of this
    pid, the members of the group are checked and killed one by one.
    """
    if not ticks or pid <= 1:
        return
    try:
        fields = look_up(pid)
    except OSError:
        return
    if fields is None:
        if _group_exists(pid):
            with contextlib.suppress(OSError):
                for member, started in _members(pid, not_before=ticks):
                    send_signal(member, started, signal.SIGKILL)
    elif int(fields[_START]) == ticks and int(fields[_GROUP]) == pid:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


def reap(pid: int) -> int | None:
    """Return the wait status of an exited child, or None if it runs or is no child of this process."""
    try:
        reaped, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return status if reaped == pid else None


def _members(group: int, *, not_before: int) -> Iterator[tuple[int, int]]:
    """Yield pid and start time of this user's processes in a group and session whose leader is gone."""
    for entry in Path("/proc").iterdir():
        fields = stat_fields(int(entry.name)) if entry.name.isdecimal() else None
        if fields is None or int(fields[_GROUP]) != group or int(fields[_SESSION]) != group:
            continue
        started = int(fields[_START])
        if started >= not_before and _is_ours(int(entry.name)):
            yield int(entry.name), started


def _is_ours(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError as error:
        if error.errno in _GONE:
            return False
        raise
    uids = next((line.split()[1:] for line in status.splitlines() if line.startswith("Uid:")), [])
    return bool(uids) and int(uids[0]) == os.getuid()


def _group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except OSError:
        return False
    return True


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


_NICENESS = 10
"""Niceness of background work. Next to ranks that use all cores it still gets about a tenth of one."""


def lower_priority() -> None:
    """Make the calling thread yield the CPU to the ranks (niceness 10)."""
    thread = threading.get_native_id()
    # Only root may lower a niceness, so one that is higher already stays.
    os.setpriority(os.PRIO_PROCESS, thread, max(_NICENESS, os.getpriority(os.PRIO_PROCESS, thread)))


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
