"""A whole run on this machine, from the first process to the last trace of it."""

import logging
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from holdfast_cli.checkpoints.location import primary_location
from holdfast_cli.control import ControlClient, ControlError
from holdfast_cli.errors import CommandError
from holdfast_cli.interruption import Interruption
from holdfast_cli.local_run.options import LocalRunOptions
from holdfast_cli.local_run.preemption import Preemption
from holdfast_cli.local_run.run_spec import run_spec
from holdfast_cli.local_run.stack import LocalStack
from holdfast_cli.run_folder.ended import save_last_status
from holdfast_cli.run_folder.endpoints import Endpoint, write_targets
from holdfast_cli.run_folder.lock import RunLock
from holdfast_cli.run_folder.paths import RunPaths, make_memory_directory, make_runtime_directory, prepare_directory
from holdfast_cli.run_folder.processes import identify
from holdfast_cli.run_folder.record import RunRecord, load_record
from holdfast_cli.run_folder.sweep import agent_records, forget_ranks, sweep
from holdfast_proto.v1.control_pb2 import RunStatus
from holdfast_proto.v1.store_pb2 import (
    LIFE_EXITED,
    RUN_PHASE_FAILED,
    RUN_PHASE_FINISHED,
    Incident,
    RunPhase,
    RunSpec,
)

NODE = "local"
POLL_S = 0.1
AGENT_PATIENCE_S = 150.0
"""After its run has ended an agent still commits the last checkpoint."""
STOP_PATIENCE_S = 15.0
TERM_PATIENCE_S = 10.0

_package_log = logging.getLogger("holdfast_cli")
log = logging.getLogger(__name__)


def has_ended(status: RunStatus) -> bool:
    """Whether the run goes no further."""
    return status.phase in (RUN_PHASE_FINISHED, RUN_PHASE_FAILED)


def _ignore(_: RunStatus) -> None:
    pass


class LocalRun:
    """A run on this machine. Use it with ``with``: whatever happens, nothing but its directory is left behind.

    ``interruption``: signals that shall end it; one SIGTERM has it stop after a last checkpoint. Raises
    ConfigurationError for a setting that cannot work, InterruptionError after a signal, CommandError for anything
    else that a user can act on.
    """

    paths: RunPaths
    """Where everything lies, once entered."""
    _record: RunRecord

    def __init__(self, options: LocalRunOptions, interruption: Interruption | None = None) -> None:
        self.options = options
        self._interruption = interruption or Interruption()
        self._instance = secrets.token_hex(8)
        self._last_status: RunStatus | None = None
        self._open = False

    def __enter__(self) -> "LocalRun":
        directory = prepare_directory(self.options.directory / self.options.run)
        self._lock = RunLock(directory / "run.lock", self.options.run)
        try:
            self._prepare(directory)
        except BaseException:
            self._lock.release()
            raise
        try:
            self._stack.start(self._spec(), is_agent_done=self._is_agent_done)
            while self._look() is None:  # the daemon serves before it has found the run
                time.sleep(POLL_S)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

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
            orphaned_s = (orphaned_s or now_s) if self._stack.component("agent").done else None
            if orphaned_s is not None and now_s - orphaned_s > AGENT_PATIENCE_S:
                raise CommandError(f"the agent has ended but no daemon says how: see {self.paths.logs}")
            time.sleep(POLL_S)

    def look(self) -> RunStatus | None:
        """Return the run as the daemon sees it now, or None while there is none.

        Raises ConfigurationError if a component gave up. Whoever waits calls this: it keeps the run's record fresh.
        """
        self._stack.raise_if_fatal()
        self._note_endpoints()
        try:
            return self.status()
        except ControlError:  # it is being started again; training goes on
            return None

    def status(self) -> RunStatus:
        """Return the run as the daemon sees it now. Raises ControlError while there is no daemon."""
        self._last_status = self._control.status()
        return self._last_status

    def incidents(self) -> list[Incident]:
        """Return all incidents so far, oldest first. Raises ControlError while there is no daemon."""
        return self._control.incidents()

    def take_checkpoint(self) -> int:
        """Order a checkpoint and return its step. Raises ControlError."""
        return self._control.take_checkpoint()

    def expect_end(self, within_s: float) -> None:
        """Have the daemon take it for no incident if the ranks of somebody else's launcher end within that time."""
        with suppress(ControlError):  # nobody is there to judge them
            self._control.stop_run(grace_s=within_s)

    def notes(self) -> list[str]:
        """Return what the components have been through, one line each."""
        return self._stack.notes()

    @property
    def store_url(self) -> str:
        """Where the run's Redis is."""
        return self._stack.store_url

    @property
    def checkpoints(self) -> str:
        """Where the run's checkpoints are: absolute path or URL."""
        return primary_location(self.options.checkpoint_directory or str(self.paths.directory / "checkpoints"))

    @property
    def checkpoint_directory(self) -> Path:
        """Where the run's checkpoints are, if that is a folder."""
        return Path(self.checkpoints)

    def pid_of(self, component: str) -> int | None:
        """Return the pid of "redis", "daemon" or "agent"; None while it is down or not ours."""
        return self._stack.pids().get(component)

    def warm_parent_pid(self) -> int | None:
        """Return the pid of the process that forks the ranks, or None before the agent has one."""
        records = [record for record in agent_records(self.paths.directory) if record.warm_parent_pid]
        return records[0].warm_parent_pid if records else None

    def rank_pids(self) -> dict[int, int]:
        """Return rank -> pid of all ranks that live. Raises ControlError while there is no daemon."""
        return {rank.rank: rank.pid for rank in self.status().ranks if rank.pid and rank.life != LIFE_EXITED}

    def suspend_restart(self, component: str) -> None:
        """Keep a component down once it dies."""
        self._stack.component(component).suspended = True

    def resume_restart(self, component: str) -> None:
        """Let a component be started again."""
        self._stack.component(component).suspended = False

    def restart_redis(self, *, empty: bool = False) -> None:
        """SIGKILL our Redis and wait for the next one; ``empty``: it has lost all its data."""
        self._stack.restart_redis(empty=empty)

    def stop(self) -> None:
        """End everything: politely, then by force. Safe to call twice."""
        if not self._open:
            return
        self._open = False
        self._order_stop()
        self._stack.close(0.0 if self._is_hurried() else TERM_PATIENCE_S)
        sweep(self._record)
        if self._last_status is not None:
            save_last_status(self.paths.directory, self._last_status)
        self._record = replace(self._record, outcome=self._outcome(), components={})
        self._record.save()
        self.paths.targets.unlink(missing_ok=True)  # or Prometheus would take an ended run for a dead one
        _package_log.removeHandler(self._log_handler)
        self._log_handler.close()
        self._lock.release()

    def _prepare(self, directory: Path) -> None:
        """Clear up after an earlier run of this name, and set up all that needs no other process."""
        earlier = load_record(directory)
        if earlier is not None:
            earlier.check_own()
            sweep(earlier)
        forget_ranks(directory)
        memory = make_memory_directory(self.options.shm_directory, self.options.run, self._instance)
        self.paths = RunPaths(directory, make_runtime_directory(), memory, NODE)
        self._open = True
        self._log_handler = logging.FileHandler(self.paths.logs / "holdfast.log")
        self._log_handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        _package_log.addHandler(self._log_handler)
        _package_log.setLevel(logging.INFO)
        self._stack = LocalStack(self.options, self.paths, instance=self._instance, check=self._interruption.check)
        self._control = ControlClient(self.paths.control, self.options.run, timeout_s=2.0)
        self._preemption = Preemption(self._interruption, self._control, self.options.preemption_grace_s)
        self._record = self._new_record()
        self._record.save()

    def _look(self) -> RunStatus | None:
        """One turn of a wait: raises what shall end it, returns the status if there is a daemon."""
        self._preemption.check()
        return self.look()

    def _settle(self, last: RunStatus, observe: Callable[[RunStatus], None]) -> RunStatus:
        """Wait until the agent of an ended run has gone, and return the last status that still knows its ranks."""
        agent = self._stack.component("agent")
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
        self._last_status = last
        return last

    def _is_agent_done(self, code: int) -> bool:
        if code == 0:
            return True
        try:
            return has_ended(self._control.status())
        except ControlError:
            return False

    def _order_stop(self) -> None:
        pids = self._stack.pids()
        if "agent" not in pids or "daemon" not in pids or self._is_hurried():
            return
        try:
            self._control.stop_run()
        except ControlError as error:
            log.warning("the daemon could not be told to stop the run: %s", error)
            return
        agent = self._stack.component("agent")
        deadline = time.monotonic() + STOP_PATIENCE_S
        while not (self._is_hurried() or agent.wait_exit(POLL_S)) and time.monotonic() < deadline:
            pass

    def _is_hurried(self) -> bool:
        return self._interruption.count > 1 or self._preemption.is_late

    def _outcome(self) -> str:
        status = self._last_status
        if status is None:
            return "stopped before it began"
        if not has_ended(status):
            return "stopped"
        return status.outcome or RunPhase.Name(status.phase).removeprefix("RUN_PHASE_").lower()

    def _note_endpoints(self) -> None:
        """Keep what other commands and Prometheus read about the components up to date."""
        endpoints: dict[str, Endpoint] = self._stack.endpoints()
        components: dict[str, dict[str, object]] = {name: {"pid": pid} for name, pid in self._stack.pids().items()}
        for name, endpoint in endpoints.items():
            components[name] = asdict(endpoint)
        if components != self._record.components:
            self._record = replace(self._record, components=components)
            self._record.save()
            write_targets(self.paths.targets, self.options.run, "127.0.0.1", endpoints)

    def _new_record(self) -> RunRecord:
        own = identify(os.getpid())
        assert own is not None, "/proc must be mounted"
        return RunRecord(
            run=self.options.run,
            instance=self._instance,
            pid=own.pid,
            start_ticks=own.start_ticks,
            node=NODE,
            directory=str(self.paths.directory),
            runtime_directory=str(self.paths.runtime),
            shm_directory=str(self.paths.memory),
            checkpoint_directory=self.checkpoints,
            control=str(self.paths.control),
            store_url=self._stack.store_url,
            created_unix_s=time.time(),
        )

    def _spec(self) -> RunSpec:
        return run_spec(
            self.options,
            nodes=1,
            checkpoints=self.checkpoints,
            created_unix_s=self._record.created_unix_s,
            instance=self._instance,
        )
