"""Finds out who else uses this machine: no speed is measured next to another job, which it would slow down.

All facts come from /proc. A process may end at any time, and one of another user shows less.
"""

import os
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from holdfast_agent.movement.process_table import ProcessStat, read_table

PROGRAM = "holdfast_agent.preflight.measuring"
"""Module of the program that measures."""

_LOOK_S = 0.3
_LOOKS = 5
_MOST_BUSY = 0.5
"""Share of the cores that other work may keep busy while speeds are measured."""


def company(proc: Path, agent_pid: int, gpu_pids: Mapping[int, Collection[int]]) -> str:
    """Return which process of another job trains on this machine; "" if none is seen.

    Args:
        proc: folder of the processes, /proc.
        agent_pid: the process whose ancestors and descendants belong to this job.
        gpu_pids: number of a GPU -> processes that compute on it, as the driver numbers them. In a container these are
            other numbers, but no process of this job computes while its node is checked.
    """
    table = read_table(str(proc))
    ours = family(table, agent_pid)
    others = {pid: process for pid, process in sorted(table.items()) if pid not in ours and process.lives}
    for pid, process in others.items():
        what = _training(proc / str(pid))
        if what:
            return f"process {pid} ({process.name}) {what}"
    for gpu, pids in gpu_pids.items():
        for pid in pids:
            if pid not in ours:
                return f"process {pid} computes on GPU {gpu}"
    return ""


def family(table: Mapping[int, ProcessStat], pid: int) -> set[int]:
    """Return the pids of a process, its ancestors and its descendants."""
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting += children.get(each, ())
    while pid in table and table[pid].parent not in {0, *found}:
        pid = table[pid].parent
        found.add(pid)
    return found


def _training(process: Path) -> str:
    """Return how a process takes part in training; "" if it does not."""
    arguments = [text.decode(errors="replace") for text in _read(process / "cmdline").split(b"\0")]
    programs = [Path(argument).name for argument in arguments[:2]]
    if arguments[0].startswith("holdfast: rank "):
        return "is a rank of another run"
    if PROGRAM in arguments:
        return "checks this machine too"
    is_python = programs[0].startswith("python")
    if programs[0] == "torchrun" or (is_python and ("torchrun" in programs or "torch.distributed.run" in arguments)):
        return "is a launcher of ranks"
    names = {text.partition(b"=")[0] for text in _read(process / "environ").split(b"\0")}
    return "is a rank of another job" if {b"RANK", b"WORLD_SIZE"} <= names else ""


def load_note(proc: Path) -> str:
    """Return how many cores other work keeps busy, or "" once most are free. Programs that start here get a while."""
    note = ""
    for _ in range(_LOOKS):
        before = cpu_ticks(_read(proc / "stat").decode())
        time.sleep(_LOOK_S)
        note = busy_note(before, cpu_ticks(_read(proc / "stat").decode()), os.sched_getaffinity(0))
        if not note:
            break
    return note


def busy_note(
    before: Mapping[int, tuple[int, int]], after: Mapping[int, tuple[int, int]], cores: Collection[int]
) -> str:
    """Return how many of ``cores`` were busy between two looks, or "" if most were free. See :func:`cpu_ticks`."""
    busy = 0.0
    for core in cores:
        if core in before and core in after:
            worked, passed = (now - then for now, then in zip(after[core], before[core], strict=True))
            busy += worked / passed if passed > 0 else 0.0
    is_busy = busy > _MOST_BUSY * len(cores)
    return f"other work keeps {busy:.1f} of {len(cores)} cores busy" if is_busy else ""


def cpu_ticks(text: str) -> dict[int, tuple[int, int]]:
    """Return core -> ticks in which it worked, and all ticks, from /proc/stat. Waiting for a disk is no work."""
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        number = name.removeprefix("cpu")
        if name.startswith("cpu") and number.isdecimal():
            user, nice, system, idle, waiting, *interrupts = (int(field) for field in rest.split()[:8])
            worked = user + nice + system + sum(interrupts)
            found[int(number)] = (worked, worked + idle + waiting)
    return found


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
