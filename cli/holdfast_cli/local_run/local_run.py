"""A whole run on this machine, from the first process to the last trace of it."""

import logging
import time
from collections.abc import Callable
from contextlib import suppress

from holdfast_checkpoint.store.locations import is_url
from holdfast_cli.checkpoints.location import usable_steps
from holdfast_cli.control import ControlClient, ControlError, has_ended
from holdfast_cli.errors import CommandError
from holdfast_cli.interruption import Interruption
from holdfast_cli.local_run.preemption import Preemption
from holdfast_cli.local_run.run_options import LocalRunOptions
from holdfast_cli.local_run.run_spec import run_spec
from holdfast_cli.local_run.stack import AGENT_PATIENCE_S, LocalStack
from holdfast_cli.local_run.supervised_folder import SupervisedFolder
from holdfast_cli.run_folder.ended import outcome_of
from holdfast_cli.run_folder.paths import RunPaths
from holdfast_proto.v1.control_pb2 import RunStatus
from holdfast_proto.v1.store_pb2 import Incident

POLL_S = 0.1
STOP_PATIENCE_S = 15.0
TERM_PATIENCE_S = 10.0
END_PATIENCE_S = 60.0
"""Time for a launcher to end after a signal. torchrun and Slurm kill after 30 s."""

log = logging.getLogger(__name__)


def _ignore(_: RunStatus) -> None:
    pass


class LocalRun:
    """A run on this machine. Use it with ``with``: whatever happens, nothing but its directory is left behind.

    ``interruption``: signals that shall end it; a warning, or one SIGTERM, has it stop after a last checkpoint. Raises
    SettingsError for a setting that cannot work, InterruptionError after a signal, CommandError for anything
    else that a user can act on.
    """

    folder: SupervisedFolder
    """What the run has on disk. Like the next two, it exists once the run is entered."""
    stack: LocalStack
    """The processes of Redis, daemon and agent."""
    control: ControlClient
    """Operators' requests to the daemon."""

    def __init__(self, options: LocalRunOptions, interruption: Interruption | None = None) -> None:
        self.options = options
        self._interruption = interruption or Interruption()
        self._last_status: RunStatus | None = None
        self._open = False

    def __enter__(self) -> "LocalRun":
        self.folder = SupervisedFolder(self.options)
        self._open = True
        self.control = ControlClient(self.paths.control, self.options.run, timeout_s=2.0)
        self.stack = LocalStack(self.options, self.folder, check=self._interruption.check)
        self._preemption = Preemption(self._interruption, self.control, self.options.preemption_grace_s)
        spec = run_spec(
            self.options,
            nodes=1,
            checkpoints=self.checkpoints,
            created_unix_s=self.folder.created_unix_s,
            instance=self.folder.instance,
        )
        try:
            self.stack.start(spec, is_agent_done=self._is_agent_done)
            while self._look() is None:  # the daemon serves before it has found the run
                time.sleep(POLL_S)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def paths(self) -> RunPaths:
        """Paths of the run."""
        return self.folder.paths

    @property
    def checkpoints(self) -> str:
        """Absolute path or URL of the run's checkpoints."""
        return self.folder.checkpoints

    @property
    def store_url(self) -> str:
        """URL of the run's Redis."""
        return self.folder.store_url

    def notes(self) -> list[str]:
        """Return one line for each component that was started again or is down, and for a stop that was asked for."""
        return [*self._preemption.notes(), *self.stack.notes()]

    def expect_end(self) -> None:
        """Announce the end of ranks that another launcher has started, so that it is no incident."""
        with suppress(ControlError):  # without a daemon, nothing judges them
            self.control.stop_run(grace_s=END_PATIENCE_S)

    def launcher_ended(self, code: int) -> None:
        """Report that the launcher of an observed run has ended. ``code``: its exit code as in a shell."""
        with suppress(ControlError):  # without a daemon, no incident waits for it
            self.control.launcher_ended(code)

    def incidents(self) -> list[Incident]:
        """Return all incidents of the run, oldest first. Raises ControlError while there is no daemon."""
        return self.control.incidents()

    def wait(self, observe: Callable[[RunStatus], None] = _ignore, timeout_s: float | None = None) -> RunStatus:
        """Wait for the end of the run and return its last status; ``observe`` sees every one before.

        Raises TimeoutError after ``timeout_s``, InterruptionError if it was to stop and could not as planned.
        """
        started_s = time.monotonic()
        orphaned_s: float | None = None
        while True:
            status = self._look()
            if status is not None:
                observe(status)
                if has_ended(status):
                    last = self._settle(status, observe)
                    self._preemption.check_outcome(last)
                    return last
            now_s = time.monotonic()
            if timeout_s is not None and now_s - started_s > timeout_s:
                raise TimeoutError(f"run {self.options.run} has not ended within {timeout_s:g} s")
            orphaned_s = (orphaned_s or now_s) if self.stack.component("agent").done else None
            if orphaned_s is not None and now_s - orphaned_s > AGENT_PATIENCE_S:
                raise CommandError(f"the agent has ended but no daemon says how: see {self.paths.logs}")
            time.sleep(POLL_S)

    @property
    def last_status(self) -> RunStatus | None:
        """The run as the daemon last saw it, also after the end; None if there was no daemon."""
        return self._last_status

    def look(self) -> RunStatus | None:
        """Return the run as the daemon sees it now, or None while there is none.

        Raises SettingsError if a component gave up. Call it again and again: it keeps the run's record fresh.
        """
        self.stack.raise_if_fatal()
        self.folder.note(self.stack.pids(), self.stack.endpoints())
        try:
            return self.status()
        except ControlError:  # it is being started again; training continues
            return None

    def status(self) -> RunStatus:
        """Return the run as the daemon sees it now. Raises ControlError while there is no daemon."""
        self._last_status = self.control.status()
        return self._last_status

    def stop(self) -> None:
        """End everything: politely, then by force. Safe to call twice."""
        if not self._open:
            return
        self._open = False
        outcome = outcome_of(self._last_status)
        self._request_stop()
        self.stack.close(0.0 if self._is_hurried() else TERM_PATIENCE_S)
        self.folder.leave(outcome, self._last_status)

    def _look(self) -> RunStatus | None:
        """Look once during a wait: raise what ends it, return the status if there is a daemon."""
        self._preemption.check()
        return self.look()

    def _settle(self, last: RunStatus, observe: Callable[[RunStatus], None]) -> RunStatus:
        """Wait until the agent of an ended run has gone, and return the last status that still knows its ranks."""
        agent = self.stack.component("agent")
        deadline = time.monotonic() + AGENT_PATIENCE_S
        while not agent.wait_exit(POLL_S) and time.monotonic() < deadline:
            status = self._look()
            if status is None:
                continue
            if status.ranks:
                observe(status)
                last = status
            elif status.HasField("failed_checkpoint"):  # the agent's last word
                last.failed_checkpoint = status.failed_checkpoint
        final = self._look()
        if final is not None and final.HasField("failed_checkpoint"):
            last.failed_checkpoint = final.failed_checkpoint
        self._see_late_checkpoint(last)
        self._last_status = last
        return last

    def _is_agent_done(self, code: int) -> bool:
        if code == 0:
            return True
        try:
            return has_ended(self.control.status())
        except ControlError:
            return False

    def _request_stop(self) -> None:
        pids = self.stack.pids()
        if "agent" not in pids or "daemon" not in pids or self._is_hurried():
            return
        try:
            self.control.stop_run()
        except ControlError as error:
            log.warning("the daemon could not be asked to stop the run: %s", error)
            return
        agent = self.stack.component("agent")
        deadline = time.monotonic() + STOP_PATIENCE_S
        while not (self._is_hurried() or agent.wait_exit(POLL_S)) and time.monotonic() < deadline:
            pass
        self._note_last_steps()

    def _note_last_steps(self) -> None:
        """Take over what the run has done since it was last looked at. The agent has gone, and its ranks with it."""
        last = self._last_status
        try:
            final = self.control.status()
        except ControlError:
            return
        if last is not None:
            final.ranks.MergeFrom([] if final.ranks else last.ranks)
            final.newest_checkpoint = max(final.newest_checkpoint, last.newest_checkpoint)
        self._see_late_checkpoint(final)
        self._last_status = final

    def _see_late_checkpoint(self, status: RunStatus) -> None:
        """Take over a checkpoint that the agent has committed after its last report."""
        if not is_url(self.checkpoints):
            with suppress(CommandError, OSError):
                steps = usable_steps(self.checkpoints, self.options.run)
                status.newest_checkpoint = max([status.newest_checkpoint, *steps])

    def _is_hurried(self) -> bool:
        return self._interruption.count > 1 or self._preemption.is_late
