"""``holdfast top``: a run in a terminal, live."""

import os
import sys

from holdfast_cli.errors import CommandError
from holdfast_cli.flags.watching import TopFlags
from holdfast_cli.run_folder.record import find_records
from holdfast_cli.top.app import TopApp
from holdfast_cli.top.run_source import RunSource


def top(flags: TopFlags) -> None:
    """Show a run until somebody quits."""
    if not is_terminal():
        raise CommandError("holdfast top needs a terminal: use `holdfast status`, with --json for scripts")
    known = find_records(flags.directory) if flags.run is None and flags.control is None else []
    if len(known) > 1:
        TopApp(None, choices=known, directory=flags.directory).run()
        return
    source = RunSource(flags.directory, flags.run, flags.control)
    TopApp(source, first=source.look()).run()  # the first look fails as that of `holdfast status` does


def is_terminal() -> bool:
    """Return whether this process can draw on a terminal and read its keys."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
