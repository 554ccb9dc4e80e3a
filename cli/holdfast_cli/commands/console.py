"""``holdfast console``: the daemon's page in a browser: its address, or the page itself once the run has ended."""

import time
from pathlib import Path

from holdfast_cli.errors import CommandError
from holdfast_cli.flags.watch_flags import ConsoleFlags
from holdfast_cli.interruption import Interruption
from holdfast_cli.reports.run_facts import RunSource, find_source
from holdfast_cli.run_folder.ended import load_last_status
from holdfast_cli.run_folder.record import load_record
from holdfast_cli.run_folder.target import find_target
from holdfast_cli.views.console_address import OPERATOR, VIEWER, address_lines, console_lines
from holdfast_daemon.console.starting import MISSING, has_packages
from holdfast_proto import run_files

_LOOK_S = 0.2


def console(flags: ConsoleFlags) -> None:
    """Print the address, and how to reach it from another machine. Of a run that has ended, serve it until Ctrl-C."""
    role = VIEWER if flags.viewer else OPERATOR
    source = _ended(flags) if flags.control is None else None
    if source is not None:
        _serve(source, role)
        return
    target = find_target(flags.directory, flags.run, flags.control)
    target.connect()
    lines = console_lines(target.control, role)
    if not lines:
        raise CommandError(
            "the daemon serves no console: was it started with --no-console, or without "
            "`pip install 'holdfast-torch[console]'`? Its log says why"
        )
    for line in lines:
        print(line)


def _ended(flags: ConsoleFlags) -> RunSource | None:
    """Return the run that the flags name if it has ended, as far as this machine can tell; None: it runs."""
    try:
        record = find_target(flags.directory, flags.run, None).unsupervised
    except CommandError:
        return find_source(flags.directory, flags.run)  # it may be the folder of a daemon
    return None if record is None else RunSource(record.run, Path(record.directory), record)


def _serve(source: RunSource, role: str) -> None:
    if not has_packages():
        raise CommandError(MISSING)
    from holdfast_daemon.console.ended_runs import NothingKeptError, read_ended, serve_ended

    try:
        last = load_last_status(source.directory) if source.record is not None else None
        if last is not None and source.record is not None:
            last.outcome = last.outcome or source.record.outcome
        is_over = source.record is not None
        run = read_ended(source.directory, source.run, time.time(), last=last, is_over=is_over)
    except NothingKeptError as error:
        raise CommandError(str(error)) from None
    with Interruption() as interruption:
        try:
            server = serve_ended(source.directory, {source.run: run})
        except OSError as error:
            raise CommandError(str(error)) from None
        try:
            print(f"run {source.run} has ended: {run.outcome}", flush=True)
            tokens = run_files.console_tokens(source.directory)
            for line in address_lines("127.0.0.1", server.port, tokens, role):
                print(line, flush=True)
            print("Ctrl-C ends this console", flush=True)
            while not interruption.count:
                time.sleep(_LOOK_S)
                record = load_record(source.directory)
                if record is not None and not record.outcome and record.supervisor.is_alive():
                    print(f"run {source.run} was started again, and has a console of its own: `holdfast console`")
                    break
        finally:
            server.close()
