"""One case run by the real product: ``holdfast run`` in mode act, watched from outside."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from holdfast_cli.control import ControlClient, ControlError
from holdfast_cli.run_folder.ended import load_incidents, load_last_status
from holdfast_cli.run_folder.record import RunRecord, load_record
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.control_pb2 import RunStatus

from .case import OddCase, Place
from .outside import Target, cause
from .pause import LoggedPause, read_pauses
from .scene import CASE, FOLDER, HTTP_PORT, PORT, TWIN
from .servers import SlowWorld

_ROOT = Path(__file__).resolve().parents[2]
_MARK = "ODD_RUN_MARK"
_POLL_S = 0.1
_AROUND_S = 240.0
"""Seconds that start, steps and end take at most, in addition to the pause."""
_BEFORE_OUTSIDE = 15
"""Steps before a pause from outside."""
_RESTARTING = (store.RUN_PHASE_GATHERING, store.RUN_PHASE_STOPPING, store.RUN_PHASE_FAILED)


@dataclass(frozen=True)
class Observed:
    """Observations of one run."""

    exit_code: int | None
    """Exit code of the command. None: it did not end in time."""
    status: RunStatus | None
    """Last status of the run."""
    incidents: tuple[store.Incident, ...]
    restart_seen_s: float | None
    """Unix time at which the watcher saw that the first generation was given up."""
    culprit_gone_s: float | None
    """Unix time at which the watcher saw that a rank that paused had ended."""
    pauses: tuple[LoggedPause, ...]
    last_words: str
    """End of the command's output."""
    took_s: float


def observe(case: OddCase, folder: Path, *, twin: bool) -> Observed:
    """Run a case to its end; return what was observed."""
    with SlowWorld() as world:
        run = _OddRun(case, folder, world, twin=twin)
        try:
            return run.watch()
        finally:
            run.sweep()


class _OddRun:
    def __init__(self, case: OddCase, folder: Path, world: SlowWorld, *, twin: bool) -> None:
        self._case, self._twin = case, twin
        self._mark = uuid.uuid4().hex
        self._name = f"odd-{self._mark[:8]}"
        self._folder = folder / self._name
        self._pauses = self._folder / "pauses"
        self._pauses.mkdir(parents=True)
        self._log = self._folder / "command.log"
        self._outside: Target | None = None
        self._outside_thread: threading.Thread | None = None
        self._restart_seen_s: float | None = None
        self._culprit_gone_s: float | None = None
        self._culprit_pid: int | None = None
        self._began_s = time.monotonic()
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                self._command(), env=self._environment(world), stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def watch(self) -> Observed:
        """Watch until the command ends or its time is over."""
        deadline_s = time.monotonic() + self._longest_s()
        while self._process.poll() is None and time.monotonic() < deadline_s:
            status = self._status()
            now_s = time.time()
            if status is not None:
                self._look(status, now_s)
            if self._culprit_pid is not None and self._culprit_gone_s is None and _has_ended(self._culprit_pid):
                self._culprit_gone_s = now_s
            time.sleep(_POLL_S)
        code = self._process.poll()
        record = self._record()
        return Observed(
            exit_code=code,
            status=load_last_status(self._run_directory) if code is not None else self._status(),
            incidents=tuple(load_incidents(record)) if record is not None else (),
            restart_seen_s=self._restart_seen_s,
            culprit_gone_s=self._culprit_gone_s,
            pauses=tuple(self._all_pauses()),
            last_words="\n".join(self._log.read_text().splitlines()[-8:]),
            took_s=time.monotonic() - self._began_s,
        )

    def sweep(self) -> None:
        """End all processes that are left of the run. Their environment has its mark."""
        _signal_all(_marked(self._mark), signal.SIGCONT)
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(20.0)
        _signal_all(_marked(self._mark), signal.SIGKILL)
        self._process.wait()
        if self._outside_thread is not None:
            self._outside_thread.join()

    def _look(self, status: RunStatus, now_s: float) -> None:
        given_up = status.generation > 1 or status.phase in _RESTARTING
        if given_up and self._restart_seen_s is None:
            self._restart_seen_s = now_s
        pids = {rank.rank: rank.pid for rank in status.ranks if rank.life == store.LIFE_RUNNING}
        if self._case.ends_late and not given_up:
            culprit = self._case.culprits()[0]
            self._culprit_pid = pids.get(culprit, self._culprit_pid)
        elif self._case.place is Place.OUTSIDE and self._outside is None and status.newest_step >= _BEFORE_OUTSIDE:
            self._pause_from_outside(pids)

    def _pause_from_outside(self, ranks: dict[int, int]) -> None:
        record = self._record()
        assert record is not None and len(ranks) == self._case.ranks
        components = {name: int(str(entry["pid"])) for name, entry in record.components.items() if "pid" in entry}
        target = Target(ranks, components, _marked(self._mark), self._case.lasts_s)
        activity = (self._case.twin.activity or self._case.activity) if self._twin else None
        self._outside = target
        self._outside_thread = threading.Thread(
            target=cause, args=(target, self._case.activity), kwargs={"twin_activity": activity}
        )
        self._outside_thread.start()

    def _all_pauses(self) -> list[LoggedPause]:
        if self._outside is not None:
            return self._outside.pauses
        return read_pauses(self._pauses)

    def _longest_s(self) -> float:
        pauses_s = self._case.lasts_s * max(1, len(self._case.steps))
        restart_s = self._case.as_twin().restart_deadline_s if self._twin else 0.0
        return _AROUND_S + pauses_s + 2.0 * restart_s

    def _status(self) -> RunStatus | None:
        record = self._record()
        if record is None:
            return None
        with contextlib.suppress(ControlError):
            return ControlClient(Path(record.control), record.run, timeout_s=1.0).status()
        return None

    def _record(self) -> RunRecord | None:
        return load_record(self._run_directory)

    @property
    def _run_directory(self) -> Path:
        return self._folder / self._name

    def _command(self) -> list[str]:
        case = self._case
        options = {
            "--run": self._name,
            "--ranks": case.ranks,
            "--directory": self._folder,
            "--preset": case.preset,
            "--mode": "act",
            "--restart-patience": case.factor,
            "--snapshot-every": 1,
            "--checkpoint-every": 0,
        }
        flags = [str(part) for pair in options.items() for part in pair]
        return [sys.executable, "-m", "holdfast_cli", "run", *flags, "--", sys.executable, "-m", "benchmarks.odd_runs"]

    def _environment(self, world: SlowWorld) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")]),
            _MARK: self._mark,
            CASE: self._case.name,
            TWIN: "1" if self._twin else "0",
            FOLDER: str(self._pauses),
            PORT: str(world.port),
            HTTP_PORT: str(world.http_port),
        }


def _has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def _marked(mark: str) -> list[int]:
    """Return the pids of all processes whose environment has a mark."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if f"{_MARK}={mark}".encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


def _signal_all(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
