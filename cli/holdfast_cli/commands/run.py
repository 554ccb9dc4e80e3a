"""``holdfast run``: a whole run on this machine."""

import sys
import time
from pathlib import Path

from rich.console import Console

from holdfast_cli.checkpoints.location import check_owner, owner_of
from holdfast_cli.errors import BadLossError, InterruptionError
from holdfast_cli.flags.runs import RunFlags
from holdfast_cli.interruption import Interruption
from holdfast_cli.local_run.local_run import LocalRun
from holdfast_cli.local_run.notify_spec import check_files
from holdfast_cli.local_run.options import LocalRunOptions, check_name, local_run_options
from holdfast_cli.rank_logs.follower import Follower
from holdfast_cli.settings.resolving import resolve
from holdfast_cli.settings.schema import LossActionName, RunSettings
from holdfast_cli.trainer_command import check_configuration, check_starts
from holdfast_cli.views.attachment import AttachmentWatch
from holdfast_cli.views.console_address import start_lines
from holdfast_cli.views.display import LineDisplay, display_for
from holdfast_cli.views.output import print_json
from holdfast_cli.views.run_view import Surroundings
from holdfast_cli.views.summary import bad_end, closing_line, ended_badly, interrupted_line, stopped_line
from holdfast_cli.views.undelivered import undelivered_line
from holdfast_proto.message_json import to_json
from holdfast_proto.v1.control_pb2 import RunStatus
from holdfast_proto.v1.store_pb2 import RUN_PHASE_FINISHED


def run(flags: RunFlags) -> None:
    """Train until the run ends."""
    resolved = resolve("run", flags.given, flags.command, flags.config)
    options = local_run_options(resolved, run=run_name(resolved.settings))
    check_files(resolved)
    check_starts(options.command)
    check_configuration(options.command, ranks=options.ranks, is_here=True)
    _watch(options, json=flags.json, tee=flags.tee)


def run_name(settings: RunSettings) -> str:
    """Return the run's name: as given, as that of its checkpoints, or a new one. Raises CommandError."""
    name, checkpoints = settings.run, settings.checkpoint_directory
    if name is not None:
        check_name(name)
    if checkpoints is not None and name is None:
        name = owner_of(checkpoints)
    elif checkpoints is not None and name is not None and not (settings.adopt or settings.from_scratch):
        check_owner(checkpoints, name)
    return time.strftime("run-%Y%m%d-%H%M%S") if name is None else name


def _watch(options: LocalRunOptions, *, json: bool, tee: bool) -> None:
    printed = Follower(options.directory / options.run, since_unix_s=time.time())
    printed.skip_present()
    attachment = AttachmentWatch()
    interruption = Interruption()
    local = LocalRun(options, interruption)
    try:
        with interruption, local:
            with LineDisplay(Console(stderr=True)) if json else display_for(Console()) as display:

                def show(seen: RunStatus) -> None:
                    attachment.see(seen)
                    if tee:
                        display.say([line.prefixed for line in printed.lines()])
                    display.update(seen, Surroundings(notes=local.stack.notes()))

                display.say([f"{options.run} writes its logs to {_near(local.paths.logs)}: see `holdfast logs`"])
                display.say(start_lines(local.paths.control, sys.stderr if json else sys.stdout))
                try:
                    status = local.wait(show)
                finally:
                    if tee:
                        display.say([line.prefixed for line in printed.rest()])
            if json:
                print_json(to_json(status))
    except InterruptionError as error:
        _say_undelivered(local)
        last = local.last_status
        raise error.with_reason(interrupted_line(last, local.checkpoints) if last is not None else "") from None
    if attachment.line():
        print(f"holdfast: {attachment.line()}", file=sys.stderr)
    _say_undelivered(local)
    if status.phase != RUN_PHASE_FINISHED:
        raise ended_badly(status, local.paths.logs)
    if status.HasField("left_step"):
        line = stopped_line(status, local.checkpoints)
    else:
        line = closing_line(status, local.checkpoints)
    bad = bad_end(status)
    if bad and options.loss_non_finite != LossActionName.NOTE:
        raise BadLossError(f"{line} · {bad}. `holdfast checkpoint list` shows what is kept: see docs/loss-policy.md")
    if not json:
        print(f"{line} · {bad}" if bad else line)


def _say_undelivered(local: LocalRun) -> None:
    line = undelivered_line(local.paths.directory, local.options.run, local.folder.instance)
    if line:
        print(f"holdfast: {line}", file=sys.stderr)


def _near(folder: Path) -> str:
    """Return the path from here if it leads down, which is shorter; else the absolute one."""
    here = Path.cwd()
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)
