"""Harms chosen ranks at chosen steps, and remembers when."""

import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from holdfast_checkpoint.processes import process_state
from holdfast_cli.run_folder.processes import identify
from holdfast_proto import black_box
from holdfast_proto.v1.common_pb2 import PHASE_FORWARD_BACKWARD
from holdfast_proto.v1.control_pb2 import RankView, RunStatus
from holdfast_proto.v1.store_pb2 import (
    INCIDENT_STATE_OPEN,
    INCIDENT_STATE_STANDSTILL,
    LIFE_RUNNING,
    RUN_PHASE_RUNNING,
)

_STOP_PATIENCE_S = 1.0


@dataclass(frozen=True)
class Injected:
    """A fault that has happened."""

    kind: str
    rank: int
    step: int
    """Step that the rank was in."""
    unix_s: float


class Fault(Protocol):
    """One way to harm a rank, due when the run has completed ``after_step``."""

    @property
    def kind(self) -> str:
        """Kind of the fault, in one word."""

    @property
    def rank(self) -> int:
        """Rank to harm."""

    @property
    def after_step(self) -> int:
        """Step that must be complete before."""

    @property
    def plan(self) -> str:
        """Plan in words."""

    def strike(self, rank: RankView) -> float | None:
        """Harm the rank and return the Unix time, or None if this was not the moment: the rank is unharmed then."""


@dataclass(frozen=True)
class Kill:
    """SIGKILL: the rank is gone immediately."""

    rank: int
    after_step: int
    kind: str = "kill"

    @property
    def plan(self) -> str:
        """Plan in words."""
        return f"rank {self.rank} is killed (SIGKILL) after step {self.after_step}"

    def strike(self, rank: RankView) -> float | None:
        """Kill the process of ``rank``."""
        now_unix_s = time.time()
        process = identify(rank.pid)
        return now_unix_s if process is not None and process.signal(signal.SIGKILL) else None


@dataclass(frozen=True)
class Hang:
    """SIGSTOP in the middle of a step: the rank is there, holds its connections, and does nothing."""

    rank: int
    after_step: int
    kind: str = "hang"

    @property
    def plan(self) -> str:
        """Plan in words."""
        return f"rank {self.rank} is stopped (SIGSTOP) within the step after {self.after_step}"

    def strike(self, rank: RankView) -> float | None:
        """Stop the process if it is in a forward or backward pass; else let it continue.

        The status is always a little old: what counts is where the black box of the stopped process says it is.
        """
        if rank.phase != PHASE_FORWARD_BACKWARD:
            return None
        now_unix_s = time.time()
        process = identify(rank.pid)
        if process is None or not process.signal(signal.SIGSTOP):
            return None
        if _is_stopped(rank.pid) and _phase_of(rank.pid) == PHASE_FORWARD_BACKWARD:
            return now_unix_s
        process.signal(signal.SIGCONT)
        return None


class FaultInjector:
    """Injects ``faults`` in order. Each waits until the run has recovered from the one before."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self._waiting = list(faults)
        self.injected: list[Injected] = []

    def observe(self, status: RunStatus) -> None:
        """Look at a new status and strike if it is time."""
        if not self._waiting or not self._is_well(status):
            return
        fault = self._waiting[0]
        rank = next((rank for rank in status.ranks if rank.rank == fault.rank), None)
        if rank is None or rank.life != LIFE_RUNNING or not rank.pid or status.newest_step < fault.after_step:
            return
        unix_s = fault.strike(rank)
        if unix_s is not None:
            self.injected.append(Injected(fault.kind, fault.rank, rank.step, unix_s))
            self._waiting.pop(0)

    def story(self) -> str:
        """Return what was done and what will be, in words."""
        done = [f"{fault.kind} of rank {fault.rank} at step {fault.step}: done" for fault in self.injected]
        return "; ".join([*done, *(fault.plan for fault in self._waiting)])

    def _is_well(self, status: RunStatus) -> bool:
        if status.phase != RUN_PHASE_RUNNING:
            return False
        if not self.injected:
            return True
        newest = status.newest_incident
        answered = newest.detected_unix_s > self.injected[-1].unix_s
        return answered and newest.state not in (INCIDENT_STATE_OPEN, INCIDENT_STATE_STANDSTILL)


def _is_stopped(pid: int) -> bool:
    deadline = time.monotonic() + _STOP_PATIENCE_S
    while time.monotonic() < deadline:
        if process_state(pid) in ("T", ""):
            return process_state(pid) == "T"
        time.sleep(0.001)
    return False


def _phase_of(pid: int) -> int | None:
    """Return the phase in the black box that a process has mapped, or None if it has none."""
    try:
        mappings = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return None
    for mapping in mappings:
        fields = mapping.split(maxsplit=5)
        if len(fields) == 6 and fields[1].endswith("s") and fields[5].startswith("/"):
            with suppress(OSError, ValueError):
                contents = black_box.read(Path(fields[5]))
                if contents.pid == pid:
                    return contents.phase
    return None
