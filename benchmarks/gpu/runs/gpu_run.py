"""Starts such a run, harms it, and waits for what Holdfast reports."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from benchmarks.gpu.record import ROOT
from holdfast_cli.control import ControlError, rank_pids
from holdfast_cli.local_run.local_run import LocalRun
from holdfast_cli.local_run.run_options import LocalRunOptions
from holdfast_cli.settings.schema import ModeName, PresetName
from holdfast_proto.v1.store_pb2 import RUN_PHASE_RUNNING, Incident

PATIENCE_S = 120.0
LEARNING_STEPS = 12
"""Steps after which the deadlines are learned."""

_Found = TypeVar("_Found")


class GpuRun:
    """A run of ``ranks`` ranks. Use it with ``with``."""

    def __init__(self, device: str, folder: Path, *, ranks: int, backend: str = "gloo", mode: ModeName) -> None:
        self.folder = folder
        rank_loop = Path(__file__).with_name("rank_loop.py")
        options = LocalRunOptions(
            run=f"gpu-{ranks}-{backend}",
            command=("python", str(rank_loop), device, backend, str(folder)),
            ranks=ranks,
            directory=folder,
            snapshot_every=1,
            checkpoint_every=0,
            preset=PresetName.FAST,
            mode=mode,
            environment={"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))},
        )
        self.local = LocalRun(options)

    def __enter__(self) -> "GpuRun":
        self.local.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.local.stop()

    def step(self) -> int:
        """Return the newest step that all ranks have finished; -1: none, or the daemon does not answer."""
        try:
            status = self.local.status()
        except ControlError:
            return -1
        return status.newest_step if status.phase == RUN_PHASE_RUNNING else -1

    def until_step(self, step: int) -> None:
        """Wait until the run has trained up to a step."""
        wait_for(lambda: self.step() >= step, f"step {step}")

    def train_on(self, steps: int = LEARNING_STEPS) -> int:
        """Wait until the run has trained some more steps; return the newest one."""
        wait_for(lambda: self.step() >= 0, "the first step")
        self.until_step(self.step() + steps)
        return self.step()

    def pid(self, rank: int) -> int:
        """Return the process of a rank."""
        return rank_pids(self.local.status())[rank]

    def stick(self, rank: int, seconds: float) -> None:
        """Have a rank enqueue a kernel of N seconds."""
        file = self.folder / f"stuck-{rank}"
        partial = file.with_suffix(".partial")
        partial.write_text(str(seconds))
        partial.rename(file)

    def incident_since(self, unix_s: float, is_wanted: Callable[[Incident], bool] = lambda _: True) -> Incident:
        """Wait for the first incident after a time that is as wanted, and return it."""

        def look() -> Incident | None:
            try:
                incidents = self.local.control.incidents()
            except ControlError:
                return None
            newer = (incident for incident in incidents if incident.detected_unix_s > unix_s)
            return next((incident for incident in newer if is_wanted(incident)), None)

        return wait_for(look, "an incident")


def wait_for(look: Callable[[], _Found | None], what: str, *, patience_s: float = PATIENCE_S) -> _Found:
    """Return what ``look`` returns as soon as that is true. Raises TimeoutError, which names ``what``."""
    deadline_s = time.monotonic() + patience_s
    while not (found := look()):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{what} did not come within {patience_s:g} s")
        time.sleep(0.02)
    return found
