"""Looks at the run once a second in a thread of its own, so that no socket ever holds up the screen."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from holdfast_cli.errors import CommandError
from holdfast_cli.top.run_looks import LookSource, RunLook, reason_of

LOOK_EVERY_S = 1.0


@dataclass(frozen=True)
class Lost:
    """A look that has failed."""

    since_unix_s: float
    """First of the looks in a row that have failed."""
    reason: str


class Poller:
    """Calls ``deliver`` from its thread after each look: with the state of the run, or with why there is none."""

    def __init__(self, source: LookSource, deliver: Callable[[RunLook | Lost], None]) -> None:
        self._source = source
        self._deliver = deliver
        self._is_over = threading.Event()
        self._is_due = threading.Event()
        self._lost_unix_s = 0.0
        # A daemon thread: one that waits for a socket does not hold up the end of the command.
        self._thread = threading.Thread(target=self._run, name="holdfast-top", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the look that is under way, and deliver nothing more."""
        self._is_over.set()
        self._is_due.set()

    def look_now(self) -> None:
        """Look without waiting for the second to end: something was changed."""
        self._is_due.set()

    def _run(self) -> None:
        while not self._is_over.is_set():
            self._is_due.clear()
            seen = self._look()
            if not self._is_over.is_set():
                self._deliver(seen)
            self._is_due.wait(LOOK_EVERY_S)

    def _look(self) -> RunLook | Lost:
        try:
            look = self._source.look()
        except (CommandError, OSError, ValueError) as error:  # ValueError: a file that is half written
            self._lost_unix_s = self._lost_unix_s or time.time()
            return Lost(self._lost_unix_s, reason_of(error))
        self._lost_unix_s = 0.0
        return look
