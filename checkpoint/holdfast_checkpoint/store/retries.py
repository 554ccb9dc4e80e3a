"""Tries again what a network may make fail: exponential backoff with jitter."""

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """How long to wait between tries: twice as long each time, times a number drawn between a half and one."""

    first_s: float = 0.5
    longest_s: float = 30.0
    draw: Callable[[], float] = random.random
    """Uniform in [0, 1): many nodes that failed together do not come back together."""

    def delays_s(self) -> Iterator[float]:
        """Yield the waits, for ever."""
        delay_s = self.first_s
        while True:
            yield delay_s * (0.5 + self.draw() / 2)
            delay_s = min(2 * delay_s, self.longest_s)


@dataclass(kw_only=True)
class Retries:
    """Tries an operation up to ``limit`` times; counts tries and failures."""

    limit: int = 5
    backoff: Backoff = field(default_factory=Backoff)
    closing: threading.Event = field(default_factory=threading.Event)
    """Once set, nothing is tried again."""
    attempts_total: int = 0
    failures_total: int = 0

    def run(self, operation: Callable[[], Result], *, is_final: Callable[[Exception], bool]) -> Result:
        """Return what ``operation`` returns.

        Raises its last error after ``limit`` tries, or an error that ``is_final`` at once.
        """
        delays_s = self.backoff.delays_s()
        for number in range(1, self.limit + 1):
            self.attempts_total += 1
            try:
                return operation()
            except Exception as error:
                if not isinstance(error, FileNotFoundError):
                    self.failures_total += 1
                if number == self.limit or is_final(error) or self.closing.wait(next(delays_s)):
                    raise
        raise AssertionError("limit is at least 1")
