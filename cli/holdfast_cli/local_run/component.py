"""A long-lived process that is started again whenever it dies, and the keeper of all of a run."""

import logging
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast_base.files import share_file
from holdfast_base.log_files import LOOK_EVERY_S, limit_log
from holdfast_base.run_processes import end_process
from holdfast_cli.errors import CheckpointsUnavailableError, SettingsError
from holdfast_cli.local_run import die_with_parent
from holdfast_proto.exit_codes import ExitCode, describe_exit

FIRST_BACKOFF_S = 0.2
LONGEST_BACKOFF_S = 5.0
FINAL_CODES = (ExitCode.USAGE, ExitCode.CONFIGURATION, ExitCode.CHECKPOINTS_UNAVAILABLE)
"""Exit codes after which another start would end in the same way."""
STEADY_S = 10.0
FAILED_STARTS = 2
"""Failed starts in a row after which a component begins without its data, if it can."""
_ENDED_FROM_OUTSIDE = (0, -signal.SIGTERM, -signal.SIGKILL)

log = logging.getLogger(__name__)


def next_backoff_s(previous_s: float, uptime_s: float) -> float:
    """Return the seconds until the next start. They double each time, and begin again after a steady life."""
    if previous_s == 0 or uptime_s >= STEADY_S:
        return FIRST_BACKOFF_S
    return min(previous_s * 2, LONGEST_BACKOFF_S)


@dataclass(frozen=True, kw_only=True)
class ComponentSpec:
    """How to start a component."""

    name: str
    command: Sequence[str]
    log: Path
    """File for stdout and stderr of all starts."""
    environment: Mapping[str, str]
    """Variables added to those of this process."""
    is_final: Callable[[int], bool]
    """Whether an exit code means that the component's work is done."""
    end_signal: signal.Signals = signal.SIGTERM
    """Signal that asks it to end immediately."""
    umask: int = -1
    """Its umask; -1: that of this process."""
    is_vital: bool = True
    """Whether the run ends if the component cannot run at all. Otherwise it is started again and again."""
    begin_anew: Callable[[], str] | None = None
    """Sets aside the data that it may fail to load, and returns a line about that. Raises OSError."""


class Component:
    """A supervised process. :meth:`tick` belongs to one thread, the rest may be called from any."""

    def __init__(self, spec: ComponentSpec) -> None:
        self.spec = spec
        self.restarts = 0
        self.fatal = ""
        """Line with which it gave up; empty: it has not."""
        self.fatal_code = 0
        """Exit code with which it gave up."""
        self.done = False
        """Whether its work is done."""
        self.suspended = False
        """Whether it stays down once it dies."""
        self.begun_anew = ""
        """Line about the data that was set aside last; empty: none was."""
        self._wanted = True
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s = 0.0
        self._start_at_s = 0.0
        self._backoff_s = 0.0
        self._failed_starts = 0
        self._log_offset = 0

    @property
    def pid(self) -> int | None:
        """The pid, or None while it is down."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def tick(self, now_s: float) -> None:
        """Notice an exit; start the process if it is due. ``now_s``: monotonic."""
        with self._lock:
            if self._process is not None:
                code = self._process.poll()
                if code is None:
                    return
                self._process = None
                self._exited(code, now_s)
            idle = not self._wanted or self.suspended or self.done or self.fatal
            if not idle and now_s >= self._start_at_s:
                self._start(now_s)

    def kill(self) -> None:
        """SIGKILL it and wait for its end. It is started again unless suspended."""
        process = self._process
        if process is not None:
            process.kill()
            process.wait()

    def end(self, patience_s: float) -> None:
        """End it and do not start it again: its end signal, then SIGKILL after ``patience_s``."""
        process = self._retire()
        if process is not None:
            end_process(process, patience_s, self.spec.end_signal)

    def wait_exit(self, patience_s: float) -> bool:
        """Wait for it to end by itself; it is not started again. Returns whether it did."""
        process = self._retire()
        if process is None:
            return True
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def newest_line(self) -> str:
        """Return the last line that it has logged since its newest start, or ""."""
        try:
            with self.spec.log.open("rb") as stream:
                # A log that was too large is emptied, and begins anew.
                stream.seek(self._log_offset if self._log_offset <= os.fstat(stream.fileno()).st_size else 0)
                lines = stream.read().decode(errors="replace").split("\n")
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def _retire(self) -> subprocess.Popen[bytes] | None:
        with self._lock:
            self._wanted = False
            return self._process

    def _start(self, now_s: float) -> None:
        self._started_s = now_s
        try:
            with self.spec.log.open("ab") as output:
                share_file(self.spec.log, output.fileno())
                self._log_offset = output.tell()
                self._process = subprocess.Popen(
                    die_with_parent.wrap(self.spec.command, self.spec.end_signal),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **self.spec.environment},
                    umask=self.spec.umask,
                    start_new_session=True,  # so that Ctrl-C in the terminal reaches only this process
                )
        except OSError as error:
            self._schedule(f"could not be started ({error})", now_s)
        else:
            log.info("%s started: pid %d", self.spec.name, self._process.pid)

    def _exited(self, code: int, now_s: float) -> None:
        if not self._wanted:
            return
        if code in FINAL_CODES and self.spec.is_vital:
            self.fatal = self.newest_line() or f"{self.spec.name} says that its configuration is wrong"
            self.fatal_code = code
            log.error("%s gave up: %s", self.spec.name, self.fatal)
        elif self.spec.is_final(code):
            self.done = True
            log.info("%s is done: exit code %d", self.spec.name, code)
        else:
            last = self.newest_line() if code > 0 else ""
            self._schedule(describe_exit(code) + (f" ({last})" if last else ""), now_s)
            self._count_failed_start(code, now_s - self._started_s)

    def _count_failed_start(self, code: int, uptime_s: float) -> None:
        """Have it begin without its data after FAILED_STARTS in a row."""
        has_failed = code not in _ENDED_FROM_OUTSIDE and uptime_s < STEADY_S
        self._failed_starts = self._failed_starts + 1 if has_failed else 0
        # Once in a row of failures: if it fails without data too, another reason is behind it.
        if self._failed_starts == FAILED_STARTS and self.spec.begin_anew is not None:
            try:
                self.begun_anew = self.spec.begin_anew()
            except OSError as error:
                log.warning("%s: its data cannot be set aside: %s", self.spec.name, error)
            else:
                log.warning("%s: %s", self.spec.name, self.begun_anew)

    def _schedule(self, what: str, now_s: float) -> None:
        uptime_s = now_s - self._started_s
        self.restarts += 1
        self._backoff_s = next_backoff_s(self._backoff_s, uptime_s)
        self._start_at_s = now_s + self._backoff_s
        log.warning("%s %s after %.1f s, next start in %.1f s", self.spec.name, what, uptime_s, self._backoff_s)


_OWN_NAME = re.compile(r"^holdfast( \w+)?: ")


class ComponentKeeper:
    """Starts components, and starts them again, from one thread that lives until :meth:`close`.

    One thread, because a process that dies with its parent dies with the thread that started it.
    """

    def __init__(self, tick_s: float = 0.02) -> None:
        self.components: dict[str, Component] = {}
        """By name; replaced, never changed in place."""
        self._tick_s = tick_s
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="supervisor", daemon=True)
        self._thread.start()

    def add(self, spec: ComponentSpec) -> Component:
        """Start a component and keep it up."""
        component = Component(spec)
        self.components = {**self.components, spec.name: component}
        return component

    def raise_if_fatal(self) -> None:
        """Raise the error of a component that gave up, with its line: SettingsError, or for its checkpoints."""
        for component in self.components.values():
            if component.fatal:
                is_of_files = component.fatal_code == ExitCode.CHECKPOINTS_UNAVAILABLE
                kind = CheckpointsUnavailableError if is_of_files else SettingsError
                raise kind(_OWN_NAME.sub("", component.fatal))

    def notes(self) -> list[str]:
        """Return one line for each component that was started again or is down, and for data that was set aside."""
        lines = []
        for name, component in self.components.items():
            # Without a restart, one that has just ended has not been looked at yet: it may have ended as it should.
            if component.restarts:
                down = "" if component.pid is not None or component.done else ", is down"
                times = "once" if component.restarts == 1 else f"{component.restarts} times"
                lines.append(f"{name}: started again {times}{down}")
            if component.begun_anew:
                lines.append(f"{name}: {component.begun_anew}")
        return lines

    def close(self, patience_s: float, **longer_s: float) -> None:
        """End every component, the newest first, then the thread. ``longer_s``: patience with some, by name."""
        for name, component in reversed(self.components.items()):
            component.end(longer_s.get(name, patience_s))
        self._closing.set()
        self._thread.join()

    def _loop(self) -> None:
        looks_from_s = 0.0
        while not self._closing.wait(self._tick_s):
            now_s = time.monotonic()
            for component in self.components.values():
                component.tick(now_s)
            if now_s >= looks_from_s:
                looks_from_s = now_s + LOOK_EVERY_S
                self._limit_logs()

    def _limit_logs(self) -> None:
        for component in self.components.values():
            try:
                limit_log(component.spec.log)
            except OSError as error:
                log.warning("%s: its log is too large and cannot be emptied: %s", component.spec.name, error)
