"""Takes SIGINT, SIGTERM and SIGHUP as a request to clean up and end, and SIGUSR1 and SIGUSR2 as warnings before it."""

import signal
from collections.abc import Collection
from types import FrameType
from typing import Any

from holdfast_cli.errors import InterruptionError
from holdfast_proto.exit_codes import PREEMPTION_WARNINGS

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """Notes signals while it is entered. Loops that wait call :meth:`check` in each pass.

    The handler raises nothing, because an exception could interrupt the clean-up. A SIGHUP that is ignored stays
    ignored: that is how ``nohup`` asks to continue without the terminal.
    """

    def __init__(self, warnings: Collection[signal.Signals] | None = None) -> None:
        """Prepare. ``warnings``: those of PREEMPTION_WARNINGS to note, the others are ignored; None: handle none."""
        self._handlers: dict[signal.Signals, Any] = dict.fromkeys(_ENDS, self._note)
        if warnings is not None:
            # Not SIG_IGN: that would also be the disposition of every process that this one starts.
            self._handlers.update(dict.fromkeys(PREEMPTION_WARNINGS, lambda *_: None))
            self._handlers.update(dict.fromkeys(warnings, self._note))
        self._previous: dict[signal.Signals, Any] = {}
        self.received: list[int] = []
        """Numbers of all signals so far."""

    def __enter__(self) -> "Interruption":
        if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
            self._handlers.pop(signal.SIGHUP, None)
        self._previous = {number: signal.signal(number, handler) for number, handler in self._handlers.items()}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @property
    def count(self) -> int:
        """Number of signals that ask to end. Two mean that the sender is in a hurry."""
        return len(self._ends)

    @property
    def signal(self) -> int:
        """Number of the first signal that asks to end; 0: none yet."""
        return next(iter(self._ends), 0)

    @property
    def asks_for_planned_stop(self) -> bool:
        """Whether there is still some time: a warning has come, or one SIGTERM, and nothing else."""
        return bool(self.received) and self._ends in ([], [signal.SIGTERM])

    def check(self) -> None:
        """Raise InterruptionError if a signal asks to end."""
        if self.count:
            raise InterruptionError(self.signal)

    @property
    def _ends(self) -> list[int]:
        return [number for number in self.received if number not in PREEMPTION_WARNINGS]

    def _note(self, number: int, _: FrameType | None) -> None:
        self.received.append(number)
