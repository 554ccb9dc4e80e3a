"""Watches a run that another launcher starts. It never touches it: see --on-hang for what the agent may do."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from holdfast_cli.control import has_ended
from holdfast_cli.errors import CommandError, SettingsError
from holdfast_cli.interruption import Interruption
from holdfast_cli.local_run.local_run import POLL_S
from holdfast_cli.local_run.run_options import LocalRunOptions
from holdfast_proto.exit_codes import PREEMPTION_WARNINGS, signal_name
from holdfast_proto.rank_context import ObservedNode
from holdfast_proto.v1.control_pb2 import RankView, RunStatus
from holdfast_proto.v1.store_pb2 import LIFE_EXITED, LIFE_RUNNING

VERDICT_PATIENCE_S = 5.0
"""Longest wait, after the launcher has ended, for the verdict on a dead world or the end of a stopped one."""

EXITS_PATIENCE_S = 2.0
"""Longest wait, after the launcher has ended, until its ranks are seen to have ended, too."""

_SIGNALS = 128
"""A code above it means a signal, as in a shell."""

_HURRIED = 2
"""Number of signals after which an observation ends although ranks are alive."""


def observed_node(options: LocalRunOptions, node: str, directory: Path, runtime: Path) -> ObservedNode:
    """Return what the ranks of a run on this machine need in their environment.

    ``directory`` and ``runtime``: folders of its agent.
    """
    return ObservedNode.of(
        options.run,
        node,
        directory=directory,
        runtime=runtime,
        auto=options.auto,
        restores=options.restore,
        snapshot_every=options.snapshot_every,
        checkpoint_every=options.checkpoint_every,
        rolls_back=options.restore and bool(options.tiers_rolled_back),
    )


class Watched(Protocol):
    """A run on this machine, or this machine's part of a run."""

    def look(self) -> RunStatus | None:
        """Return the run as it was seen last; None: nobody sees it now. Raises CommandError if Holdfast has failed."""

    def expect_end(self) -> None:
        """Announce the end of the ranks, so that it is no incident."""

    def launcher_ended(self, code: int) -> None:
        """Report that the launcher has ended. ``code``: its exit code as in a shell."""


class Launcher:
    """The process of a launcher such as torchrun, srun or mpirun. It survives us: who watches a run must not end it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start ``command`` with ``environment`` added to our own. Raises SettingsError if it cannot be run."""
        try:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **environment},
                process_group=0,  # Ctrl-C in the terminal reaches it once, from this process
            )
        except OSError as error:
            raise SettingsError(f"{command[0]} cannot be run: {error.strerror}") from None

    @property
    def exit_code(self) -> int | None:
        """Exit code as in a shell, 128 + signal; None while it runs."""
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    def forward(self, signal_number: int) -> None:
        """Pass a signal on."""
        self._process.send_signal(signal_number)


class LauncherOnStdin:
    """A launcher that runs already. It holds the other end of our stdin, and says there how it ends.

    Lines: ``signal N`` before it ends its ranks because of a signal, ``ended CODE`` at its end. Without the second one
    it was killed.
    """

    def __init__(self) -> None:
        self.exit_code: int | None = None
        """Exit code as in a shell; None while it runs."""
        self._signal = signal.SIGKILL.value
        threading.Thread(target=self._read, name="launcher", daemon=True).start()

    def forward(self, signal_number: int) -> None:
        """Do nothing: it gets its signals itself."""

    def _read(self) -> None:
        for line in sys.stdin:
            word, _, number = line.strip().partition(" ")
            if word == "signal" and number.isdecimal() and int(number) in (signal.SIGTERM, signal.SIGINT):
                self._signal = int(number)
                os.kill(os.getpid(), self._signal)  # its ranks are about to end: the same as a signal to us
            elif word == "ended" and number.isdecimal():
                self.exit_code = int(number)
                return
        self.exit_code = _SIGNALS + self._signal


class LauncherWatch:
    """Shows a run while its launcher runs. ``complain`` is called once if Holdfast itself cannot continue."""

    def __init__(
        self,
        watched: Watched,
        interruption: Interruption,
        show: Callable[[RunStatus], None],
        complain: Callable[[str], None],
    ) -> None:
        self._watched = watched
        self._interruption = interruption
        self._show = show
        self._complain = complain
        self._has_given_up = False
        self.has_met_ranks = False
        """Whether any rank has connected to the agent."""

    def until_exit(self, launcher: Launcher | LauncherOnStdin) -> int:
        """Wait for the launcher, pass signals on to it, and return its exit code."""
        forwarded = 0
        while (code := launcher.exit_code) is None:
            for number in self._interruption.received[forwarded:]:
                forwarded += 1
                if number not in PREEMPTION_WARNINGS:  # after a warning the launcher may well continue
                    self._watched.expect_end()
                launcher.forward(number)
            self._look()
            time.sleep(POLL_S)
        self._await(lambda status: not any(map(_is_running, status.ranks)), EXITS_PATIENCE_S)
        if not self._has_given_up:
            self._watched.launcher_ended(code)
        self._await_verdict()
        self._name_orphans(code)
        return code

    def _name_orphans(self, code: int) -> None:
        """Complain about ranks that outlive a launcher which a signal has ended: nobody watches them from now on."""
        status = None if self._has_given_up or code <= _SIGNALS else self._look()
        alive = [rank for rank in status.ranks if _is_running(rank)] if status is not None else []
        if alive:
            ranks = ", ".join(f"rank {rank.rank} (pid {rank.pid})" for rank in alive)
            name = signal_name(code - _SIGNALS)
            self._complain(f"{name} has ended the launcher, and its ranks still run, unwatched from now on: {ranks}")

    def until_end(self) -> None:
        """Wait until the ranks have left, or for a signal."""
        while not (self._interruption.count or self._has_given_up):
            status = self._look()
            if status is not None and has_ended(status):
                return
            time.sleep(POLL_S)

    def until_gone(self, is_alive: Callable[[], bool]) -> None:
        """Wait until ranks that no process of ours has started are gone. Their launcher signals them itself."""
        announced = 0
        while is_alive() and self._interruption.count < _HURRIED:
            if self._interruption.count > announced:
                announced = self._interruption.count
                self._watched.expect_end()
            self._look()
            time.sleep(POLL_S)
        self._await_verdict()

    def _await_verdict(self) -> None:
        """Wait for the verdict on how the run ended. One more signal ends the wait."""
        self._await(_is_judged, VERDICT_PATIENCE_S)

    def _await(self, is_seen: Callable[[RunStatus], bool], patience_s: float) -> None:
        heard = self._interruption.count
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline and not (self._has_given_up or self._interruption.count > heard):
            status = self._look()
            if status is not None and is_seen(status):
                return
            time.sleep(POLL_S)

    def _look(self) -> RunStatus | None:
        if self._has_given_up:
            return None
        try:
            status = self._watched.look()
        except CommandError as error:  # the run must continue even if Holdfast cannot
            self._has_given_up = True
            self._complain(str(error))
            return None
        if status is not None:
            self.has_met_ranks |= bool(status.ranks)
            self._show(status)
        return status


def _is_running(rank: RankView) -> bool:
    return rank.life == LIFE_RUNNING and bool(rank.pid)


def _is_judged(status: RunStatus) -> bool:
    """Return whether the daemon has judged a run whose launcher has ended."""
    is_reported = status.HasField("newest_incident") and status.newest_incident.generation == status.generation
    has_died = is_reported and all(rank.life == LIFE_EXITED for rank in status.ranks)
    return has_ended(status) or not status.ranks or has_died
