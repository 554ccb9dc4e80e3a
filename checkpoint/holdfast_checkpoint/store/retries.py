"""Retries operations that a network may make fail: exponential backoff with jitter."""

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """Waits between tries: twice as long each time, times a random number between a half and one."""

    first_s: float = 0.5
    """First wait in seconds, before the random number."""
    longest_s: float = 30.0
    """Longest wait in seconds."""
    draw: Callable[[], float] = random.random
    """Source of random numbers in [0, 1). They keep nodes that failed together from returning together."""

    def delays_s(self) -> Iterator[float]:
        """Yield the waits in seconds, forever."""
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
    """Event that ends all waits: once it is set, nothing is retried."""
    attempts_total: int = 0
    """Tries so far."""
    failures_total: int = 0
    """Failed tries so far. A missing object is an answer and no failure."""

    def run(self, operation: Callable[[], Result], *, is_final: Callable[[Exception], bool]) -> Result:
        """Return what ``operation`` returns.

        Raises its last error after ``limit`` tries, and an error that ``is_final`` immediately.
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
