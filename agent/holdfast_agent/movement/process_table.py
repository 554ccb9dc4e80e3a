"""Reads all processes of the machine from /proc, and finds those that belong to a rank."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")

_ENDED = "ZXx"
_READ_BYTES = 4096

_FORKED = 0x40
"""PF_FORKNOEXEC of the kernel's include/linux/sched.h: the process has not started a program since it was forked."""

_EXIT_CODE = 49
"""Index of the wait status after the name. The kernel shows it, to the owner of a process, since Linux 3.5."""

Process = tuple[int, int]
"""Pid and start time in clock ticks since boot. The kernel reuses pids, so only both together identify a process."""


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """The fields of /proc/PID/stat that are needed here."""

    pid: int
    state: str
    """State letter of proc(5): R, S, D, T, t, Z, X or I."""
    parent: int
    group: int
    session: int
    start_ticks: int
    cpu_s: float
    """CPU seconds of all its threads so far, ended ones included; in steps of a clock tick."""
    major_faults: int
    """Number of page faults so far that had to read from a disk."""
    children_ended: int
    """Sum of the faults and ticks of children that have ended and were waited for: grows with each such child."""
    name: str = ""
    """Name of the main thread."""
    is_forked: bool = False
    """Whether it runs the program of its parent: it was forked, and has started no program of its own."""
    exit_code: int = 0
    """Of a zombie: its exit code, or the negated number of the signal that ended it."""

    @property
    def identity(self) -> Process:
        """Pid and start time."""
        return self.pid, self.start_ticks

    @property
    def lives(self) -> bool:
        """Whether the process has not ended. A zombie has ended."""
        return self.state not in _ENDED


def read_file(path: str) -> str:
    """Return the start of a file of /proc, several times as fast as Path.read_text(). Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _READ_BYTES).decode(errors="replace")
    finally:
        os.close(descriptor)


def parse_stat(pid: int, text: str) -> ProcessStat | None:
    """Return the parsed line of /proc/PID/stat, or None if it is garbage."""
    # A program may have any name, with blanks and brackets in it: the fields begin after the last bracket.
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    try:
        return ProcessStat(
            pid=pid,
            state=fields[0],
            parent=int(fields[1]),
            group=int(fields[2]),
            session=int(fields[3]),
            start_ticks=int(fields[19]),
            cpu_s=(int(fields[11]) + int(fields[12])) / TICKS_PER_S,
            major_faults=int(fields[9]),
            children_ended=int(fields[8]) + int(fields[10]) + int(fields[13]) + int(fields[14]),
            name=name,
            is_forked=bool(int(fields[6]) & _FORKED),
            exit_code=_exit_code(int(fields[_EXIT_CODE])) if len(fields) > _EXIT_CODE else 0,
        )
    except (ValueError, IndexError):
        return None


def _exit_code(status: int) -> int:
    """Return what subprocess calls the return code of a wait status."""
    return -(status & 0x7F) or status >> 8


def read_process(pid: int, proc: str = "/proc") -> ProcessStat | None:
    """Return one process, or None if it does not exist or cannot be read."""
    try:
        return parse_stat(pid, read_file(f"{proc}/{pid}/stat"))
    except OSError:
        return None


def read_table(proc: str = "/proc") -> dict[int, ProcessStat]:
    """Return all processes of the machine by pid, without those that end during the call. Raises OSError."""
    pids = (int(path.name) for path in Path(proc).iterdir() if path.name.isdecimal())
    return {pid: process for pid in pids if (process := read_process(pid, proc)) is not None}


def tree_of(
    root: Process, table: Mapping[int, ProcessStat], known: Iterable[Process] = ()
) -> dict[Process, ProcessStat]:
    """Return the live processes of a rank: itself and all its descendants. Empty if the rank has ended.

    The kernel gives a process whose parent has ended to another parent. Such a process is found by the session or the
    process group that the rank leads, or because it is in ``known``, the tree as it was before.
    """
    rank = table.get(root[0])
    if rank is None or rank.identity != root or not rank.lives:
        return {}
    children: dict[int, list[ProcessStat]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process)
    before = set(known)
    waiting = [rank, *(each for each in table.values() if each.identity in before or _is_led_by(each, rank))]
    found: dict[Process, ProcessStat] = {}
    while waiting:
        process = waiting.pop()
        if process.identity not in found:
            found[process.identity] = process
            waiting += children.get(process.pid, ())
    return {identity: process for identity, process in found.items() if process.lives}


def _is_led_by(process: ProcessStat, rank: ProcessStat) -> bool:
    leads_session, leads_group = rank.session == rank.pid, rank.group == rank.pid
    return (leads_session and process.session == rank.pid) or (leads_group and process.group == rank.pid)
