"""Takes SIGINT, SIGTERM and SIGHUP as a request to clean up and end."""

import signal
from types import FrameType
from typing import Any

from holdfast_cli.errors import InterruptionError

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """Notes these signals while it is entered. Loops that wait call :meth:`check` in each pass.

    The handler raises nothing, because an exception could interrupt the clean-up.
    """

    def __init__(self) -> None:
        self.count = 0
        """Number of signals so far. Two mean that the sender is in a hurry."""
        self.signal = 0
        """Number of the first signal; 0: none yet."""
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Interruption":
        self._previous = {number: signal.signal(number, self._note) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @property
    def is_one_sigterm(self) -> bool:
        """Whether SIGTERM has come, and nothing else."""
        return self.count == 1 and self.signal == signal.SIGTERM

    def check(self) -> None:
        """Raise InterruptionError if a signal has come."""
        if self.count:
            raise InterruptionError(self.signal)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.count += 1
        self.signal = self.signal or number
