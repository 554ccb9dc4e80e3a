"""Writes what /proc shows of a rank's process and its threads, but not the environment, which may contain secrets."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from holdfast_agent.evidence.evidence_folder import EvidenceFolder
from holdfast_agent.processes.rank import Rank
from holdfast_proto.run_files import rank_evidence

_OF_PROCESS = ("status", "stat", "wchan", "syscall", "stack", "limits")
_OF_THREAD = ("comm", "stat", "wchan", "syscall", "stack")


def write_process_state(rank: Rank, folder: EvidenceFolder, *, threads: bool) -> None:
    """Write the state of a rank's process and, with ``threads``, of each of its threads."""
    name = rank_evidence(rank.rank, "proc.txt")
    process = Path(f"/proc/{rank.pid}")
    parts = [*_read(process, _OF_PROCESS, folder, name), *_descriptors(process, folder, name), _movement(rank)]
    if threads:
        for thread in _threads(process, folder, name):
            parts += _read(thread, _OF_THREAD, folder, name)
    folder.write(name, "".join(parts))


def _read(directory: Path, files: Iterable[str], folder: EvidenceFolder, name: str) -> Iterator[str]:
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
