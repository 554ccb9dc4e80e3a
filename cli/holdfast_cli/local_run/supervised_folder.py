"""The folder of a run while this process supervises it, and all that the run has outside it."""

import logging
import os
import secrets
import time
from dataclasses import replace
from logging.handlers import RotatingFileHandler
from pathlib import Path

from holdfast_base.files import make_private_directory, share_file
from holdfast_base.log_files import MOST_LOG_BYTES
from holdfast_base.run_processes import identify
from holdfast_cli.checkpoints.location import primary_location
from holdfast_cli.local_run.run_options import LocalRunOptions
from holdfast_cli.run_folder.ended import CUT_SHORT, as_left, save_last_status, take_last_status
from holdfast_cli.run_folder.lock import RunLock
from holdfast_cli.run_folder.memory_folder import MemoryFolder
from holdfast_cli.run_folder.paths import RunPaths, make_runtime_directory, prepare_directory
from holdfast_cli.run_folder.record import RunRecord, load_record
from holdfast_cli.run_folder.scrape_targets import write_targets
from holdfast_cli.run_folder.sweep import forget_ranks, sweep
from holdfast_proto.endpoint import Endpoint
from holdfast_proto.run_files import process_log
from holdfast_proto.v1.control_pb2 import RunStatus

NODE = "local"

log = logging.getLogger(__name__)
_package_log = logging.getLogger("holdfast_cli")


class SupervisedFolder:
    """Holds a run's folder: lock, record, log and Prometheus targets, with its sockets and its snapshot memory.

    Creating one clears up after an earlier run of the same name, and removes the snapshots of dead runs. Raises
    CommandError if another process holds the folder, SettingsError if a path cannot be used.
    """

    def __init__(
        self, options: LocalRunOptions, *, node: str = NODE, name: str = "", runtime: Path | None = None
    ) -> None:
        """Take the folder.

        Args:
            options: of the run.
            node: name of its agent.
            name: of the folder; empty: that of the run.
            runtime: folder for sockets; None: one that no other process knows.
        """
        self._node = node
        self._runtime = runtime
        self.instance = secrets.token_hex(8)
        """Random name of this start, in the environment of all its processes."""
        self._run = options.run
        directory = prepare_directory(options.directory / (name or options.run), share=options.share_group)
        self._lock = RunLock(directory, options.run)
        try:
            self.paths = self._paths(options, directory)
            """Paths of this run."""
            self.checkpoints = primary_location(options.checkpoint_directory or str(directory / "checkpoints"))
            """Absolute path or URL of the run's checkpoints."""
            self.store_url = options.redis_url or f"unix://{self.paths.redis_socket}"
            """URL of the run's Redis."""
            self._log_handler = self._begin_log()
            self._record = self._new_record(observed=not options.command)
            self._record.save()
            self._earlier_status = take_last_status(directory)
        except BaseException:
            self._lock.release()
            raise

    @property
    def created_unix_s(self) -> float:
        """Unix time of this start."""
        return self._record.created_unix_s

    def note(self, pids: dict[str, int], endpoints: dict[str, Endpoint]) -> None:
        """Record which components are up, for other commands and for Prometheus. Both arguments are by component."""
        components: dict[str, dict[str, object]] = {name: {"pid": pid} for name, pid in pids.items()}
        for name, endpoint in endpoints.items():
            ports = {"metrics_port": endpoint.metrics_port, "console_port": endpoint.console_port}
            components[name] = {"pid": endpoint.pid, **{port: number for port, number in ports.items() if number}}
        if components != self._record.components:
            record = replace(self._record, components=components)
            try:
                record.save()
                write_targets(self.paths.directory, endpoints)
            except OSError as error:  # a full disk, say: the run continues, and the next call tries again
                log.warning("the run's record in %s cannot be written: %s", self.paths.directory, error)
            else:
                self._record = record

    def leave(self, outcome: str, last_status: RunStatus | None) -> None:
        """End what is left of the run, keep how it ended, and give the folder up.

        A start that was refused before the run began leaves the folder as the start before it did: people ask then
        how that one ended.
        """
        sweep(self._record)
        self._memory.release()
        if last_status is not None:
            save_last_status(self.paths.directory, as_left(last_status, observed=self._record.observed))
        if last_status is None and self._earlier is not None:
            self._record = replace(self._earlier, outcome=self._earlier.outcome or CUT_SHORT, components={})
            if self._earlier_status is not None:
                save_last_status(self.paths.directory, self._earlier_status)
        else:
            self._record = replace(self._record, outcome=outcome, components={})
        self._record.save()
        _package_log.removeHandler(self._log_handler)
        _package_log.setLevel(logging.NOTSET)
        self._log_handler.close()
        self._lock.release()

    def _paths(self, options: LocalRunOptions, directory: Path) -> RunPaths:
        self._earlier = earlier = load_record(directory)
        if earlier is not None:
            earlier.check_own()
            sweep(earlier)
        forget_ranks(directory)
        self._memory = MemoryFolder(options.shm_directory, options.run, self.instance)
        runtime = self._runtime or make_runtime_directory()
        make_private_directory(runtime, "TMPDIR")
        return RunPaths(directory, runtime, self._memory.path, self._node)

    def _begin_log(self) -> logging.Handler:
        path = process_log(self.paths.directory, "holdfast")
        handler = RotatingFileHandler(path, maxBytes=MOST_LOG_BYTES, backupCount=1)
        share_file(path)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        _package_log.addHandler(handler)
        _package_log.setLevel(logging.INFO)
        return handler

    def _new_record(self, *, observed: bool) -> RunRecord:
        own = identify(os.getpid())
        assert own is not None, "/proc must be mounted"
        return RunRecord(
            run=self._run,
            instance=self.instance,
            pid=own.pid,
            start_ticks=own.start_ticks,
            node=self._node,
            directory=str(self.paths.directory),
            runtime_directory=str(self.paths.runtime),
            shm_directory=str(self.paths.memory),
            checkpoint_directory=self.checkpoints,
            control=str(self.paths.control),
            store_url=self.store_url,
            created_unix_s=time.time(),
            observed=observed,
        )
