"""Faults that a dice chooses, for all that a run consists of: its processes, its files and their disks."""

import contextlib
import random
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from holdfast_base.run_processes import ProcessIdentity, marked_processes
from holdfast_cli.control import ControlClient
from holdfast_cli.run_folder.record import RunRecord
from holdfast_cli.run_folder.sweep import MARKER
from tests.chaos.test_checkpoint_outage import Disk

FILES = (
    "run.json",
    "checkpoints/**/step-*/*.json",
    "checkpoints/**/*.shard",
    "redis/**/*.aof",
    "history/*",
    "node-*/record.pb",
)
"""Files of a run's folder that are torn or overwritten.

Left out is ``history-*.json`` of the checkpoints. Without it, no checkpoint is committed until an operator brings it
back, and the run says so.
"""
HEADER_BYTES = 64


@dataclass(frozen=True)
class HarmedRun:
    """A ``holdfast run`` in a process of its own. Its parts are found without its files, which faults damage."""

    process: "subprocess.Popen[bytes]"
    record: RunRecord
    """The record as it was when the run began."""
    disks: tuple[Disk, ...]
    """The file systems of its folder and of its snapshots, if they are its own."""

    @property
    def control(self) -> ControlClient:
        """A client of its daemon."""
        return ControlClient(Path(self.record.control), self.record.run, timeout_s=2.0)

    def parts(self) -> list[tuple[str, ProcessIdentity]]:
        """Return all its processes but ``holdfast run`` itself, with their names, in the order of these."""
        found = []
        for identity in marked_processes(MARKER, self.record.instance):
            with contextlib.suppress(OSError):
                found.append((_name(identity.pid), identity))
        return sorted(found, key=lambda each: (each[0], each[1].pid))

    def part(self, dice: random.Random) -> tuple[str, ProcessIdentity]:
        """Return one of its processes. Each kind is as likely as any other, however many there are of it."""
        parts = self.parts()
        kind = dice.choice(sorted({name.rstrip("0123456789") for name, _ in parts}))
        return dice.choice([part for part in parts if part[0].rstrip("0123456789") == kind])

    def file(self, dice: random.Random) -> Path:
        """Return one of its files that may be damaged. Each kind is as likely as any other, however many there are."""
        folder, runtime = Path(self.record.directory), Path(self.record.runtime_directory)
        kinds = [sorted(folder.glob(name)) for name in FILES] + [sorted(runtime.glob("*endpoint*"))]
        return dice.choice(dice.choice([paths for paths in kinds if paths]))

    def slots(self) -> list[Path]:
        """Return the files of its snapshots in memory."""
        return sorted(Path(self.record.shm_directory).rglob("*.slot"))


def _name(pid: int) -> str:
    words = (Path("/proc") / str(pid) / "cmdline").read_text().split("\0")
    for component in ("agent", "daemon"):
        if component in words:
            return component
    return (Path("/proc") / str(pid) / "comm").read_text().strip()


Fault = Callable[[HarmedRun, random.Random, ExitStack], str]
"""Does harm and returns what it did, in words. What it puts on the stack ends the harm."""


def kill(run: HarmedRun, dice: random.Random, ends: ExitStack) -> str:
    """SIGKILL a process."""
    name, identity = run.part(dice)
    identity.signal(signal.SIGKILL)
    return f"kill {name}"


def stop(run: HarmedRun, dice: random.Random, ends: ExitStack) -> str:
    """SIGSTOP a process, which continues later."""
    name, identity = run.part(dice)
    identity.signal(signal.SIGSTOP)
    ends.callback(identity.signal, signal.SIGCONT)
    return f"stop {name}"


def take_descriptors(run: HarmedRun, dice: random.Random, ends: ExitStack) -> str:
    """Let a process open no further file."""
    name, identity = run.part(dice)
    pid = identity.pid
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = max(int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()) + 1

    def give_back() -> None:
        if identity.is_alive():
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))

    resource.prlimit(pid, resource.RLIMIT_NOFILE, (min(used, hard), hard))
    ends.callback(give_back)
    return f"no free descriptor for {name}"


def lose_store(run: HarmedRun, dice: random.Random, ends: ExitStack) -> str:
    """SIGKILL Redis, and remove its data."""
    for name, identity in run.parts():
        if name.startswith(("redis-server", "valkey-server")):
            identity.signal(signal.SIGSTOP)  # so that it is not started again before its data are gone
            shutil.rmtree(Path(run.record.directory) / "redis", ignore_errors=True)
            (Path(run.record.directory) / "redis").mkdir(mode=0o700, exist_ok=True)
            identity.signal(signal.SIGKILL)
    return "kill Redis and remove its data"


def damage_file(run: HarmedRun, dice: random.Random, ends: ExitStack) -> str:
    """Cut a file off, or overwrite a part of it."""
    path = run.file(dice)
    size = path.stat().st_size
    place = dice.randrange(size + 1)
    with path.open("r+b") as file:
        if dice.random() < 0.5:
            file.truncate(place)
            how = "cut off"
        else:
            file.seek(place)
            file.write(dice.randbytes(min(HEADER_BYTES, size - place)))
            how = "overwrite"
    return f"{how} {path.relative_to(path.parents[1])} at byte {place} of {size}"


def damage_slots(run: HarmedRun, dice: random.Random, ends: ExitStack) -> str:
    """Remove some snapshots from memory, or overwrite the headers. (Nothing guards the bytes of the tensors.)"""
    slots = [path for path in run.slots() if dice.random() < 0.5]
    does_remove = dice.random() < 0.5
    for path in slots:
        if does_remove:
            path.unlink()
            continue
        with path.open("r+b") as file:
            file.write(dice.randbytes(HEADER_BYTES))
    return f"{'remove' if does_remove else 'overwrite'} {', '.join(path.name for path in slots)}"


def fill_disk(run: HarmedRun, dice: random.Random, ends: ExitStack) -> str:
    """Fill the file system of the run's folder, or that of its snapshots."""
    disk = dice.choice(run.disks)
    disk.fill()
    ends.callback(disk.empty)
    return f"fill {disk.path}"


def kill_ranks_without_memory(run: HarmedRun, dice: random.Random, ends: ExitStack) -> str:
    """SIGKILL all ranks, and overwrite the headers of all snapshots, so that a checkpoint must be read."""
    for name, identity in run.parts():
        if name.startswith("rank"):
            identity.signal(signal.SIGKILL)
    for path in run.slots():
        with path.open("r+b") as file:
            file.write(bytes(HEADER_BYTES))
    return "kill all ranks and overwrite all snapshots"


FAULTS: tuple[Fault, ...] = (
    kill,
    kill,
    stop,
    stop,
    take_descriptors,
    lose_store,
    damage_file,
    damage_file,
    damage_slots,
    fill_disk,
    kill_ranks_without_memory,
)
"""All faults; those that are there twice are twice as likely."""


def harm(run: HarmedRun, dice: random.Random, ends: ExitStack) -> list[str]:
    """Do one to three kinds of harm, and return what was done."""
    done = []
    for fault in dice.choices(FAULTS, k=dice.choice((1, 1, 2, 3))):
        if fault is not fill_disk or run.disks:
            # What one fault has ended or removed, the next one may not find any more.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, IndexError):
                done.append(fault(run, dice, ends))
    return done
