"""``holdfast top``: a run in a terminal, live."""

import contextlib
import os
import signal
import sys
import termios
import threading
from collections.abc import Iterator

from holdfast_cli.errors import CommandError
from holdfast_cli.flags.watch_flags import TopFlags
from holdfast_cli.run_folder.record import find_records
from holdfast_cli.top.run_looks import LookSource
from holdfast_cli.top.top_app import TopApp

_LOOK_EVERY_S = 1.0


def top(flags: TopFlags) -> None:
    """Show a run until somebody quits."""
    if not is_terminal():
        raise CommandError("holdfast top needs a terminal: use `holdfast status`, with --json for scripts")
    with _ended_with_terminal():
        _show(flags)


def _show(flags: TopFlags) -> None:
    known = find_records(flags.directory) if flags.run is None and flags.control is None else []
    if len(known) > 1:
        TopApp(None, choices=known, directory=flags.directory).run()
        return
    source = LookSource(flags.directory, flags.run, flags.control)
    TopApp(source, first=source.look()).run()  # the first look fails as that of `holdfast status` does


def is_terminal() -> bool:
    """Return whether this process can draw on a terminal and read its keys."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


@contextlib.contextmanager
def _ended_with_terminal() -> Iterator[None]:
    """End this process once its terminal is gone, as long as the block runs.

    The kernel sends SIGHUP then, but not to a process of another session, and `nohup` ignores it. textual would look
    for keys without a pause, and wait for good in a write.
    """
    closed = threading.Event()
    terminal = sys.stdin.fileno()

    def look() -> None:
        while not closed.wait(_LOOK_EVERY_S):
            try:
                termios.tcgetattr(terminal)
            except termios.error:
                os._exit(128 + signal.SIGHUP)  # the main thread may hang, and there is no terminal to put back

    threading.Thread(target=look, name="holdfast-top-terminal", daemon=True).start()
    try:
        yield
    finally:
        closed.set()
