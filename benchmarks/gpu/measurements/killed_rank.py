"""A rank on the GPU is killed: how soon the run trains again, and whether its GPU memory is free by then."""

import os
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.gpu.outcome import Check, Outcome
from benchmarks.gpu.runs.gpu_run import GpuRun
from holdfast_cli.settings.schema import ModeName
from holdfast_proto.v1.store_pb2 import INCIDENT_STATE_RECOVERED

_RANKS = 3
_KILLS = 3
_MORE_RATIO = 1.3
"""By how much the use of memory may exceed that before the first kill: the old ranks' memory would double it."""


class MemoryWatch:
    """Asks the driver again and again how much of the GPU's memory is in use, from a thread."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, float]] = []
        """Unix time, MiB in use."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask no more."""
        self._stopped.set()
        self._thread.join()

    def most_mib(self, since_unix_s: float, until_unix_s: float) -> float:
        """Return the most that was in use in a span of time; 0: nothing was measured."""
        return max((mib for unix_s, mib in self.samples if since_unix_s <= unix_s <= until_unix_s), default=0.0)

    def _run(self) -> None:
        while not self._stopped.wait(0.05):
            found = used_mib()
            if found is None:
                return
            self.samples.append((time.time(), found))


def used_mib() -> float | None:
    """Return the MiB of the first GPU that are in use; None: the driver does not tell."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    try:
        return float(subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def measure(device: str) -> Outcome:
    """Kill a rank several times."""
    figures: dict[str, str] = {}
    checks: list[Check] = []
    with (
        tempfile.TemporaryDirectory(prefix="hf-") as folder,
        GpuRun(device, Path(folder), ranks=_RANKS, mode=ModeName.ACT) as run,
    ):
        watch = MemoryWatch()
        began_unix_s = time.time()
        run.train_on()
        before_mib = watch.most_mib(began_unix_s, time.time())
        for number in range(_KILLS):
            _kill_one(run, number % _RANKS, watch, figures, checks, before_mib=before_mib, number=number + 1)
        watch.stop()
    if before_mib:
        figures["GPU memory in use before the first kill"] = f"{before_mib:.0f} MiB"
    return Outcome.of(figures, checks)


def _kill_one(
    run: GpuRun,
    rank: int,
    watch: MemoryWatch,
    figures: dict[str, str],
    checks: list[Check],
    *,
    before_mib: float,
    number: int,
) -> None:
    killed_unix_s = time.time()
    os.kill(run.pid(rank), signal.SIGKILL)
    incident = run.incident_since(killed_unix_s, lambda one: one.state == INCIDENT_STATE_RECOVERED)
    trains_unix_s = time.time()
    figures[f"kill {number}: trains again after"] = f"{trains_unix_s - killed_unix_s:.1f} s"
    culprits = list(incident.verdict.culprits)
    checks.append(Check(f"kill {number}: rank {rank} is named", culprits[:1] == [rank], f"named: {culprits}"))
    most_mib = watch.most_mib(killed_unix_s, trains_unix_s)
    if before_mib and most_mib:
        what = f"kill {number}: the old ranks' memory is free before the new ones fill theirs"
        checks.append(Check(what, most_mib <= _MORE_RATIO * before_mib, f"at most {most_mib:.0f} MiB in use"))
    run.train_on()
