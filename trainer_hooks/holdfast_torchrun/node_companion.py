"""Runs ``holdfast observe`` next to a torchrun: it watches, saves and restores the ranks of this node.

It is a process of its own, so it outlives all restarts of the ranks, and holds their snapshots. It begins with torchrun
and ends with it: it reads on its stdin how torchrun ends (``holdfast observe --launcher-stdin``). What it prints for
people goes to torchrun's stderr.
"""

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import FrameType
from typing import Protocol, TypeAlias

from torch.distributed.elastic.rendezvous.api import RendezvousError

from holdfast_torchrun.rendezvous_settings import RendezvousSettings, say

START_PATIENCE_S = 90.0
"""Longest wait for Holdfast, after a world has formed. It begins long before."""
END_PATIENCE_S = 170.0
"""Longest wait, after the ranks have ended, until the last checkpoint is written."""
_EXIT_S = 10.0
"""Longest time from the end of its output to its exit code."""
_USAGE, _CONFIGURATION = 2, 78
"""Exit codes of a command with wrong arguments, and of one with a wrong setting."""
Handler: TypeAlias = Callable[[int, FrameType | None], object]
UNWATCHED = "the job starts as under plain torchrun, and is not watched"


class Companion(Protocol):
    """What watches the ranks of this node."""

    def begin(self) -> None:
        """Begin, long before the ranks. Does not wait."""

    def enter_world(self) -> None:
        """Prepare the environment of the ranks of the world that has just formed. They start when this returns."""

    def follow_signals(self) -> None:
        """Learn of signals from now on, before torchrun acts on them. Called again and again in the main thread."""

    def end(self, code: int) -> None:
        """Learn that torchrun ends, with what exit code, and save what is to be saved."""


class NoCompanion:
    """Stands for Holdfast where it does not watch the ranks."""

    def begin(self) -> None:
        """Do nothing."""

    def enter_world(self) -> None:
        """Do nothing."""

    def follow_signals(self) -> None:
        """Do nothing."""

    def end(self, code: int) -> None:
        """Do nothing."""


def observe_command(settings: RendezvousSettings) -> list[str]:
    """Return the command that watches the ranks of this node. ``settings.flags`` are passed on as they are."""
    flags: dict[str, object] = {"--on-hang": "restart", "--nodes": settings.nodes, "--run": settings.run}
    if settings.endpoint:
        flags["--redis"] = settings.endpoint
    if settings.password_file is not None:
        flags["--redis-password-file"] = settings.password_file
    if not settings.is_alone:
        flags["--node"], flags["--run-key-file"] = settings.node, settings.key_file
        if settings.local_address:
            is_v6 = ":" in settings.local_address
            flags["--replica-address"] = f"[{settings.local_address}]" if is_v6 else settings.local_address
    flags.update(settings.flags)
    words = [word for flag, value in flags.items() for word in _words(flag, str(value))]
    # -P keeps the current folder off the module path, as in all components.
    return [sys.executable, "-P", "-m", "holdfast_cli", "observe", "--restore", "--auto", "--launcher-stdin", *words]


def _words(flag: str, value: str) -> list[str]:
    if value in ("true", "false"):
        return [flag if value == "true" else f"--no-{flag.removeprefix('--')}"]
    return [flag, value]


class NodeCompanion:
    """The observation of this node, from the first world to the end of torchrun."""

    def __init__(self, settings: RendezvousSettings) -> None:
        self._command = observe_command(settings)
        # Without a Redis of its own, a node starts one. If it has none to start, that refuses no job.
        self._refusals = (_USAGE, _CONFIGURATION) if settings.endpoint else (_USAGE,)
        self._process: subprocess.Popen[str] | None = None
        self._variables: dict[str, str] = {}
        self._known = threading.Event()
        """Set once the variables are there, or never will be."""
        self._handlers: dict[int, Handler] = {}

    def begin(self) -> None:
        """Start the observation, unless it runs. Does not wait for it."""
        if self._process is not None and self._process.poll() is None:
            return
        self._known = known = threading.Event()
        process = self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C in the terminal reaches torchrun alone, which passes the news on
        )
        threading.Thread(target=self._read, args=(process, known), name="holdfast-companion", daemon=True).start()
        atexit.unregister(self.end)
        atexit.register(self.end)

    def enter_world(self) -> None:
        """Set the variables for the ranks that start next. Raises RendezvousError if a setting is refused.

        Without Holdfast the first ranks train unwatched. Later ones keep the variables of those before: they wait for
        their state, so that they never begin from scratch unseen.
        """
        self.begin()
        self._known.wait(START_PATIENCE_S)
        code = None if self._process is None else self._process.poll()
        if self._variables:
            os.environ.update(self._variables)
            if code is not None:
                say("`holdfast observe` could not be started again: ranks with a state wait for it")
            return
        if code in self._refusals:
            raise RendezvousError("Holdfast refuses a setting, see the line above: correct --rdzv-conf")
        reason = "does not answer" if code is None else f"has ended with exit code {code}, see the line above"
        say(f"`holdfast observe` {reason}: {UNWATCHED}")

    def follow_signals(self) -> None:
        """Pass signals on before torchrun acts on them: the ends of the ranks that follow are no incident.

        torch sets its handlers whenever it starts ranks. So this is called again and again, in the main thread.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            theirs = signal.getsignal(number)
            if callable(theirs) and theirs is not self._handlers.get(number):
                self._handlers[number] = self._after_telling(theirs)
                signal.signal(number, self._handlers[number])

    def end(self, code: int | None = None) -> None:
        """Report that torchrun ends, and wait for the last checkpoint. ``code``: its exit code; None: after a signal.

        Later calls do nothing.
        """
        process = self._process
        if process is None or process.stdin is None or process.stdin.closed:
            return
        if code is not None:
            self._tell(f"ended {code}")
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(END_PATIENCE_S)
        except subprocess.TimeoutExpired:
            patience = f"{END_PATIENCE_S:.0f} s"
            say(f"Holdfast still writes a checkpoint after {patience}: its process {process.pid} ends by itself")

    def _after_telling(self, theirs: Handler) -> Handler:
        def handle(number: int, frame: FrameType | None) -> object:
            self._tell(f"signal {number}")
            return theirs(number, frame)

        return handle

    def _tell(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError, ValueError):  # it has ended, or its stdin is closed
                os.write(self._process.stdin.fileno(), f"{line}\n".encode())  # unbuffered: for a signal handler

    def _read(self, process: "subprocess.Popen[str]", known: threading.Event) -> None:
        """Read the variables, which are the first line, and drop whatever follows."""
        assert process.stdout is not None
        line = process.stdout.readline()
        self._variables = _parsed(line) or self._variables
        if not line:  # it ends, and closes its files a moment before its exit code is there
            with suppress(subprocess.TimeoutExpired):
                process.wait(_EXIT_S)
        known.set()
        for _ in process.stdout:
            pass


def _parsed(line: str) -> dict[str, str]:
    """Return the variables of a line of JSON; none if it is something else."""
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    is_good = isinstance(found, Mapping) and all(isinstance(value, str) for value in found.values())
    return dict(found) if is_good else {}
