"""``holdfast run``: a whole run on this machine."""

import sys
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path

from rich.console import Console

from holdfast_cli.checkpoints.location import check_owner, owner_of
from holdfast_cli.errors import BadLossError, InterruptionError
from holdfast_cli.flags.start_flags import RunFlags
from holdfast_cli.interruption import Interruption
from holdfast_cli.local_run.automatic import RESTORES_NOTHING, without_state
from holdfast_cli.local_run.local_run import LocalRun
from holdfast_cli.local_run.notify_spec import check_files
from holdfast_cli.local_run.run_options import LocalRunOptions, check_name, local_run_options
from holdfast_cli.rank_logs.follower import Follower
from holdfast_cli.run_folder.paths import claim_dated_name, dated_name
from holdfast_cli.settings.file import read_file
from holdfast_cli.settings.resolving import merge, resolve
from holdfast_cli.settings.schema import LossActionName, RunSettings
from holdfast_cli.trainer_command import check_configuration, check_starts
from holdfast_cli.views.attachment import AttachmentWatch
from holdfast_cli.views.check_table import check_this_machine
from holdfast_cli.views.console_address import start_lines
from holdfast_cli.views.display import LineDisplay, display_for
from holdfast_cli.views.output import lasting_output, print_json
from holdfast_cli.views.run_view import Surroundings
from holdfast_cli.views.summary import bad_end, closing_line, ended_badly, interrupted_line, stopped_line
from holdfast_daemon.notify.reported import load
from holdfast_proto import run_files
from holdfast_proto.message_json import to_json
from holdfast_proto.v1.control_pb2 import RunStatus
from holdfast_proto.v1.store_pb2 import RUN_PHASE_FINISHED

_LINES_AT_ONCE = 100
"""Lines of ranks that are shown together at the end, so that a log of any size needs little memory."""


def run(flags: RunFlags) -> None:
    """Train until the run ends. With --preflight and without a command, only check this machine."""
    file = read_file(flags.config)
    if flags.given.get("preflight") and not flags.command and (file is None or "command" not in file.values):
        check_this_machine(merge("config", flags.given, file).settings, json=flags.json)
        return
    resolved = resolve("run", flags.given, flags.command, flags.config)
    name = run_name(resolved.settings)
    options = local_run_options(resolved, run=name or dated_name())
    check_files(resolved)
    check_starts(options.command)
    check_configuration(options.command, ranks=options.ranks, is_here=True)
    if name is None:  # a command that is refused leaves no folder behind
        options = replace(options, run=claim_dated_name(options.directory, share=options.share_group))
    if options.auto:
        options = without_state(options)
    with lasting_output():
        _watch(options, json=flags.json, tee=flags.tee)


def run_name(settings: RunSettings) -> str | None:
    """Return the run's name: as given, or as that of its checkpoints. None: it has none yet. Raises CommandError."""
    name, checkpoints = settings.run, settings.checkpoint_directory
    if name is not None:
        check_name(name)
    if checkpoints is not None and name is None:
        name = owner_of(checkpoints)
    elif checkpoints is not None and name is not None and not (settings.adopt or settings.from_scratch):
        check_owner(checkpoints, name)
    return name


def _watch(options: LocalRunOptions, *, json: bool, tee: bool) -> None:
    printed = Follower(options.directory / options.run, since_unix_s=time.time())
    printed.skip_present()
    attachment = AttachmentWatch(auto=options.auto)
    interruption = Interruption(options.preemption_warnings)
    local = LocalRun(options, interruption)
    try:
        with interruption, local:
            with LineDisplay(Console(stderr=True)) if json else display_for(Console()) as display:

                def show(seen: RunStatus) -> None:
                    attachment.see(seen)
                    display.say([line for line in [attachment.late_line(seen)] if line])
                    if tee:
                        display.say([line.prefixed for line in printed.lines()])
                    display.update(seen, Surroundings(notes=local.notes()))

                display.say([f"{options.run} writes its logs to {_near(local.paths.logs)}: see `holdfast logs`"])
                display.say([RESTORES_NOTHING] * options.auto)
                display.say(start_lines(local.paths.control, sys.stderr if json else sys.stdout))
                try:
                    status = local.wait(show)
                finally:
                    if tee:
                        rest = printed.rest()
                        while lines := [line.prefixed for line in islice(rest, _LINES_AT_ONCE)]:
                            display.say(lines)
            if json:
                print_json(to_json(status))
    except InterruptionError as error:
        _say_undelivered(local)
        last = local.last_status
        reason = interrupted_line(last, local.checkpoints, auto=options.auto) if last is not None else ""
        raise error.with_reason(reason) from None
    if attachment.line():
        print(f"holdfast: {attachment.line()}", file=sys.stderr)
    _say_undelivered(local)
    if status.phase != RUN_PHASE_FINISHED:
        raise ended_badly(status, local.paths.logs, local.checkpoints, auto=options.auto)
    bad = bad_end(status)
    is_bad = bool(bad) and options.loss_non_finite != LossActionName.NOTE
    if status.HasField("left_step"):
        line = stopped_line(status, local.checkpoints, is_bad=is_bad)
    else:
        line = closing_line(status, local.checkpoints)
    if is_bad:
        raise BadLossError(
            f"{line} · {bad}. Start again with --continue-from and a step that `holdfast checkpoint list` calls proven:"
            " see docs/loss-policy.md"
        )
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


def undelivered_line(directory: Path, run: str, instance: str) -> str:
    """Return which channels still had messages when the daemon ended; "" if none had.

    Args:
        directory: the daemon's folder.
        run: name of the run.
        instance: instance of the run: an earlier one may have left messages, too.
    """
    queued = load(run_files.notifications(directory, run), instance).queued
    counts = [f"{len(messages)} for {channel}" for channel, messages in sorted(queued.items()) if messages]
    if not counts:
        return ""
    return (
        f"messages were not delivered: {', '.join(counts)}. The daemon's log says why; try the channels with"
        " `holdfast notify test`"
    )
