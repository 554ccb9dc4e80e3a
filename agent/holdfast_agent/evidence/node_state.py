"""Writes the state of a node (memory, cores, disk, GPUs), and what /proc shows of a rank's process and threads."""

import heapq
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from holdfast_agent.evidence.brief_command import CommandFailedError, output_of
from holdfast_agent.evidence.evidence_folder import EvidenceFolder
from holdfast_agent.processes import cgroup
from holdfast_agent.processes.rank import Rank
from holdfast_proto.run_files import node_evidence, rank_evidence

DEVICE_PATIENCE_S = 2.0

_PROCESSES_LISTED = 20
_SYSTEM_FILES = ("loadavg", "meminfo", "pressure/cpu", "pressure/io", "pressure/memory")


def write_node_state(folder: EvidenceFolder, directories: Iterable[Path]) -> None:
    """Write the node's load, memory, pressure, free space in ``directories``, and the largest processes."""
    name = node_evidence(folder.node, "system.txt")
    files = [Path("/proc") / file for file in _SYSTEM_FILES]
    events = cgroup.memory_events()
    if events is None:
        folder.miss(name, "no memory cgroup is mounted")
    else:
        files.append(events)
    parts = [*_read(files, folder, name), *_free_space(directories, folder, name), _largest_processes()]
    folder.write(name, "\n".join(parts))


async def write_device_state(folder: EvidenceFolder) -> None:
    """Write the output of the devices' driver, if the node has one."""
    name = node_evidence(folder.node, "nvidia-smi.txt")
    program = shutil.which("nvidia-smi")
    if program is None:
        folder.miss(name, "no nvidia-smi on the PATH: the node has no NVIDIA device")
        return
    try:
        folder.write(name, await output_of(program, ["-q"], DEVICE_PATIENCE_S))
    except CommandFailedError as error:
        folder.miss(name, error)


def _read(files: Iterable[Path], folder: EvidenceFolder, name: str) -> Iterator[str]:
    for file in files:
        try:
            yield f"== {file}\n{file.read_text()}"
        except OSError as error:
            folder.miss(name, error)


def _free_space(directories: Iterable[Path], folder: EvidenceFolder, name: str) -> Iterator[str]:
    for directory in directories:
        try:
            usage = shutil.disk_usage(directory)
        except OSError as error:
            folder.miss(name, error)
        else:
            yield f"== {directory}\n{usage.free / 2**20:.0f} MiB free of {usage.total / 2**20:.0f} MiB\n"


def _largest_processes() -> str:
    """Return the largest processes by name alone: arguments may contain secrets."""
    processes = (each.info for each in psutil.process_iter(["pid", "name", "memory_info"]))
    sizes = [(info["memory_info"].rss, info["pid"], info["name"]) for info in processes if info["memory_info"]]
    lines = [f"{rss / 2**20:10.0f} MiB  {pid:8}  {name}" for rss, pid, name in heapq.nlargest(_PROCESSES_LISTED, sizes)]
    return "\n".join(["== resident memory, pid and name of the largest processes", *lines, ""])


_OF_PROCESS = ("status", "stat", "wchan", "syscall", "stack", "limits")
_OF_THREAD = ("comm", "stat", "wchan", "syscall", "stack")


def write_process_state(rank: Rank, folder: EvidenceFolder, *, threads: bool) -> None:
    """Write the state of a rank's process and, with ``threads``, of each of its threads."""
    name = rank_evidence(rank.rank, "proc.txt")
    process = Path(f"/proc/{rank.pid}")
    parts = [
        *_process_state_read(process, _OF_PROCESS, folder, name),
        *_descriptors(process, folder, name),
        _movement(rank),
    ]
    if threads:
        for thread in _threads(process, folder, name):
            parts += _process_state_read(thread, _OF_THREAD, folder, name)
    folder.write(name, "".join(parts))


def _process_state_read(directory: Path, files: Iterable[str], folder: EvidenceFolder, name: str) -> Iterator[str]:
    for file in files:
        try:
            yield f"== {directory / file}\n{(directory / file).read_text(errors='replace').rstrip()}\n\n"
        except OSError as error:
            folder.miss(name, error)


def _descriptors(process: Path, folder: EvidenceFolder, name: str) -> Iterator[str]:
    try:
        yield f"== open file descriptors\n{sum(1 for _ in (process / 'fd').iterdir())}\n\n"
    except OSError as error:
        folder.miss(name, error)


def _movement(rank: Rank) -> str:
    """Return this agent's observations of the whole process tree, as text."""
    seen = rank.tree
    return (
        "== movement in the process tree since the last progress\n"
        f"still for {seen.still_s:.1f} s, last moved: {seen.moved or 'nothing seen'},"
        f" traced: {'yes' if seen.traced else 'no'}, live child processes: {seen.workers},"
        f" sign of life: {f'{seen.sign_of_life} {seen.sign_age_s:.1f} s ago' if seen.sign_of_life else 'none'}\n\n"
    )


def _threads(process: Path, folder: EvidenceFolder, name: str) -> list[Path]:
    try:
        return sorted((process / "task").iterdir(), key=lambda path: int(path.name))
    except OSError as error:
        folder.miss(name, error)
        return []
