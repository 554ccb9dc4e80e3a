"""Gives readers damaged files: only their own errors may come out, soon, and without much memory.

It runs in a process of its own, because a limit of memory holds for a whole process.
"""

import resource
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType

from tests.fuzz.mutations import Mutate, mutate_bytes

MOST_CPU_S = 5.0
"""CPU time after which a reader hangs. None needs a second, on a quiet core."""
MOST_GROWTH_BYTES = 512 << 20
"""Address space that a reader may ask for, whatever a small file claims."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """One reader of what another process has written."""

    name: str
    read: Callable[[Path], object]
    errors: tuple[type[Exception], ...]
    """Errors that the reader documents. Any other is foreign."""
    samples: Callable[[Path], list[bytes]]
    """Makes sound files; it may use the folder."""
    mutate: Mutate = mutate_bytes
    bombs: dict[str, Callable[[Path], None]] = field(default_factory=dict)
    """Name -> writes a file that would take much memory, and must be refused."""
    file: str = "file"
    """Name of the file, which may decide how it is read."""


@dataclass
class Findings:
    """How one reader did."""

    name: str
    inputs: int = 0
    refused: int = 0
    foreign: dict[str, int] = field(default_factory=dict)
    """Error and place -> how often. The first input's number is in the key."""
    foreign_total: int = 0
    slowest_s: float = 0.0
    growth_bytes: int = 0
    """Growth of the resident memory at its peak."""


class TooSlowError(BaseException):
    """A reader has used up its CPU time."""


def examine(source: Source, folder: Path, *, inputs: int, seed: int) -> Findings:
    """Give a reader its bombs and ``inputs`` damaged files."""
    findings = Findings(source.name)
    path = folder / source.file
    samples = source.samples(folder)
    for data in samples:
        path.write_bytes(data)
        source.read(path)  # a sound file must be read, or damage shows nothing
    before_bytes = _reset_peak()
    for name, write in source.bombs.items():
        path.unlink()
        write(path)
        before_bytes = _reset_peak()
        before = findings.refused + findings.foreign_total
        _try(source, path, findings, f"bomb {name}")
        if findings.refused + findings.foreign_total == before:
            _note(findings, AssertionError("it was read"), f"bomb {name}")
        findings.growth_bytes = max(findings.growth_bytes, _status("VmHWM") - before_bytes)
    before_bytes = _reset_peak()
    for number in range(inputs):
        random = Random(f"{seed}/{source.name}/{number}")
        data = random.choice(samples)
        mutate = source.mutate if random.random() < 0.6 else mutate_bytes
        path.unlink()
        path.write_bytes(mutate(random, data))
        _try(source, path, findings, f"input {number}")
    findings.growth_bytes = max(findings.growth_bytes, _status("VmHWM") - before_bytes)
    return findings


def _try(source: Source, path: Path, findings: Findings, what: str) -> None:
    started_s = time.process_time()
    try:
        with _limited():
            source.read(path)
    except source.errors:
        findings.refused += 1
    except (Exception, TooSlowError) as error:  # noqa: BLE001  every foreign error is what is looked for
        _note(findings, error, what)
    findings.inputs += 1
    findings.slowest_s = max(findings.slowest_s, time.process_time() - started_s)


def _note(findings: Findings, error: BaseException, what: str) -> None:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "holdfast" in frame.filename] or list(frames)
    place = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else "no line"
    known = f"{type(error).__name__} at {place}"
    key = next((each for each in findings.foreign if each.startswith(known)), f"{known}, {what}: {error!s:.80}")
    findings.foreign[key] = findings.foreign.get(key, 0) + 1
    findings.foreign_total += 1


@contextmanager
def _limited() -> Iterator[None]:
    """Turn an allocation beyond the bound into a MemoryError, and a loop into TooSlowError."""

    def stop(_: int, __: FrameType | None) -> None:
        raise TooSlowError

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    previous = signal.signal(signal.SIGVTALRM, stop)
    resource.setrlimit(resource.RLIMIT_AS, (_status("VmSize") + MOST_GROWTH_BYTES, hard))
    signal.setitimer(signal.ITIMER_VIRTUAL, MOST_CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGVTALRM, previous)


def _reset_peak() -> int:
    """Let the peak of resident memory begin again, and return it."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmHWM")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
