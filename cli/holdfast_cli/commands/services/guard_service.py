"""``holdfast guard``: judges the checkpoints that another framework writes."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import typer
from prometheus_client import CollectorRegistry

from holdfast_base.metrics_access import MetricsConfigError
from holdfast_base.metrics_server import serve
from holdfast_base.processes import lower_priority, name_process
from holdfast_checkpoint.guard.examination import Examiner
from holdfast_checkpoint.guard.folder_guard import FolderGuard, GuardTimes, Judgment
from holdfast_checkpoint.guard.guard_metrics import GuardCollector, GuardNumbers
from holdfast_checkpoint.guard.paced_reading import Pace
from holdfast_cli.errors import CheckpointsUnavailableError, CommandError, InterruptionError, SettingsError
from holdfast_cli.flags.guarding import GuardFlags
from holdfast_cli.interruption import Interruption
from holdfast_cli.local_run.run_options import check_guarded
from holdfast_cli.views.guard_lines import closing_lines, judgment_line, judgment_object
from holdfast_cli.views.output import print_json
from holdfast_proto.endpoint import write_endpoint
from holdfast_proto.exit_codes import ExitCode

_LONGEST_PAUSE_S = 5.0
_LOOK_S = 0.1


def guard(flags: GuardFlags) -> None:
    """Judge until a signal comes; with ``--once``, what is there."""
    _check(flags)
    name_process("holdfast-guard")
    _yield_to_others()
    with Interruption() as interruption:
        session = _GuardSession(flags, interruption)
        try:
            if flags.once:
                session.run_once()
            with _metrics(flags, session.numbers):
                session.run()
        except InterruptionError as error:  # the guard has started nothing that would have to be stopped
            raise typer.Exit(error.exit_code) from None
        except BrokenPipeError:  # `| head` has seen enough; Python would complain when it flushes stdout at the end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _check(flags: GuardFlags) -> None:
    check_guarded(flags.folder, str(flags.folder))
    if flags.once and flags.metrics_port is not None:
        raise SettingsError("--metrics-port has no effect with --once: leave one of them out")
    if flags.endpoint is not None and flags.metrics_port is None:
        raise SettingsError("--endpoint names the port of the metrics: set --metrics-port too (0: any free one)")


def _yield_to_others() -> None:
    """Let the run have the cores and the disks first."""
    lower_priority()
    with suppress(psutil.Error, OSError, AttributeError):
        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)


@contextmanager
def _metrics(flags: GuardFlags, numbers: GuardNumbers) -> Iterator[None]:
    if flags.metrics_port is None:
        yield
        return
    registry = CollectorRegistry()
    registry.register(GuardCollector(numbers))
    try:
        server = serve(registry, flags.metrics_address, flags.metrics_port, flags.metrics_config)
    except (OSError, MetricsConfigError) as error:
        raise SettingsError(str(error)) from None
    try:
        if flags.endpoint is not None:
            _write_endpoint(flags.endpoint, server.port)
        yield
    finally:
        server.close()


def _write_endpoint(path: Path, port: int) -> None:
    try:
        write_endpoint(path, port)
    except OSError as error:
        raise CommandError(f"--endpoint {path}: {error.strerror}: name another file") from None


class _GuardSession:
    """Looks again and again, and prints what is new."""

    def __init__(self, flags: GuardFlags, interruption: Interruption) -> None:
        self._flags = flags
        self._check = interruption.check
        examiner = Examiner(
            sample_bytes=None if flags.full else flags.sample_mb * 1_000_000,
            pace=Pace(flags.bytes_per_s, interruption.check),
        )
        times = GuardTimes(quiet_s=flags.quiet_s, incomplete_after_s=flags.incomplete_after_s)
        self._folder = FolderGuard(flags.folder.absolute(), examiner, times)
        self._problem = ""
        self.numbers = GuardNumbers(str(self._folder.folder))

    def run(self) -> None:
        """Look until a signal comes, which raises InterruptionError."""
        pause_s = min(max(self._flags.quiet_s / 2, _LOOK_S), _LONGEST_PAUSE_S)
        while True:
            self._look(is_last=False)
            deadline = time.monotonic() + pause_s
            while time.monotonic() < deadline:
                self._check()
                time.sleep(_LOOK_S)

    def run_once(self) -> None:
        """Judge what is there, and exit with the code of the newest complete checkpoint: failed if none is."""
        deadline = time.monotonic() + self._flags.quiet_s + 1.0
        self._look(is_last=False)
        while self._folder.is_waiting and time.monotonic() < deadline:
            time.sleep(min(_LOOK_S, self._flags.quiet_s))
            self._look(is_last=False)
        self._look(is_last=True)
        if self._problem:
            raise CheckpointsUnavailableError(self._problem)
        newest = self._folder.newest
        if newest is None and not self.numbers.judged_total:
            raise CheckpointsUnavailableError(closing_lines(self._folder)[0] + _EXPECTED)
        if not self._flags.json:
            print("\n".join(closing_lines(self._folder)), flush=True)
        raise typer.Exit(ExitCode.SUCCESS if newest is not None and newest.is_good else ExitCode.FAILED)

    def _look(self, *, is_last: bool) -> None:
        judgments = self._folder.look(is_last=is_last)
        while True:
            try:
                judgment = next(judgments, None)
            except OSError as error:  # the folder itself: the run may create it later
                self._complain(f"{self._folder.folder}: {error.strerror}")
                return
            if judgment is None:
                break
            self.numbers.count(judgment)
            self._print(judgment)
            self._check()
        self._problem = ""
        self.numbers.look_ended(self._folder)

    def _print(self, judgment: Judgment) -> None:
        good = self._folder.newest_good
        if self._flags.json:
            print_json(judgment_object(judgment, good))
        else:
            print(judgment_line(judgment, good), flush=True)

    def _complain(self, problem: str) -> None:
        if problem != self._problem and not self._flags.once:
            print(f"holdfast: {problem}: the guard waits for it", file=sys.stderr, flush=True)
        self._problem = problem


_EXPECTED = ": name the folder in which the framework writes checkpoint-N, iter_N, step-N or *.ckpt"
