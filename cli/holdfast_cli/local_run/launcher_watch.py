"""Watches a run that another launcher starts, and never touches it."""

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from holdfast_cli.control import ControlError, has_ended
from holdfast_cli.errors import CommandError, ConfigurationError
from holdfast_cli.interruption import Interruption
from holdfast_cli.local_run.local_run import POLL_S, LocalRun
from holdfast_cli.local_run.supervised_folder import NODE
from holdfast_proto.rank_context import ObservedNode
from holdfast_proto.v1.control_pb2 import RunStatus
from holdfast_proto.v1.store_pb2 import LIFE_EXITED

VERDICT_PATIENCE_S = 5.0
"""Longest wait, after the launcher has ended, for the verdict on a dead world or the end of a stopped one."""

END_PATIENCE_S = 60.0
"""Time for a launcher to end after a signal. torchrun and Slurm kill after 30 s."""


def observed_node(local: LocalRun) -> ObservedNode:
    """Return what the ranks of a run on this machine need in their environment."""
    paths = local.paths
    return ObservedNode.of(local.options.run, NODE, directory=paths.directory, runtime=paths.runtime)


class Launcher:
    """The process of a launcher such as torchrun, srun or mpirun. It survives us: who watches a run must not end it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start ``command`` with ``environment`` added to our own. Raises ConfigurationError if it cannot be run."""
        try:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **environment},
                process_group=0,  # Ctrl-C in the terminal reaches it once, from this process
            )
        except OSError as error:
            raise ConfigurationError(f"{command[0]} cannot be run: {error.strerror}") from None

    @property
    def exit_code(self) -> int | None:
        """Exit code as in a shell, 128 + signal; None while it runs."""
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    def forward(self, signal_number: int) -> None:
        """Pass a signal on."""
        self._process.send_signal(signal_number)


class LauncherWatch:
    """Shows a run while its launcher runs. ``complain`` is called once if Holdfast itself cannot continue."""

    def __init__(
        self,
        local: LocalRun,
        interruption: Interruption,
        show: Callable[[RunStatus], None],
        complain: Callable[[str], None],
    ) -> None:
        self._local = local
        self._interruption = interruption
        self._show = show
        self._complain = complain
        self._has_given_up = False
        self.has_met_ranks = False
        """Whether any rank has connected to the agent."""

    def until_exit(self, launcher: Launcher) -> int:
        """Wait for the launcher, pass signals on to it, and return its exit code."""
        forwarded = 0
        while (code := launcher.exit_code) is None:
            if self._interruption.count > forwarded:
                forwarded = self._interruption.count
                self._expect_end()
                launcher.forward(self._interruption.signal)
            self._look()
            time.sleep(POLL_S)
        self._await_verdict(forwarded)
        return code

    def until_end(self) -> None:
        """Wait until the ranks have left, or for a signal."""
        while not (self._interruption.count or self._has_given_up):
            status = self._look()
            if status is not None and has_ended(status):
                return
            time.sleep(POLL_S)

    def _expect_end(self) -> None:
        """Announce the end of the ranks to the daemon, so that it is no incident."""
        with suppress(ControlError):  # without a daemon, nothing judges them
            self._local.control.stop_run(grace_s=END_PATIENCE_S)

    def _await_verdict(self, forwarded: int) -> None:
        """Wait for the verdict on how the run ended. One more signal than ``forwarded`` ends the wait."""
        deadline = time.monotonic() + VERDICT_PATIENCE_S
        while time.monotonic() < deadline and not (self._has_given_up or self._interruption.count > forwarded):
            status = self._look()
            if status is not None and _is_judged(status):
                return
            time.sleep(POLL_S)

    def _look(self) -> RunStatus | None:
        if self._has_given_up:
            return None
        try:
            status = self._local.look()
        except CommandError as error:  # the run must continue even if Holdfast cannot
            self._has_given_up = True
            self._complain(str(error))
            return None
        if status is not None:
            self.has_met_ranks |= bool(status.ranks)
            self._show(status)
        return status


def _is_judged(status: RunStatus) -> bool:
    """Return whether the daemon has judged a run whose launcher has ended."""
    is_reported = status.HasField("newest_incident") and status.newest_incident.generation == status.generation
    has_died = is_reported and all(rank.life == LIFE_EXITED for rank in status.ranks)
    return has_ended(status) or not status.ranks or has_died
