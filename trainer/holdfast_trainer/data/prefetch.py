"""A thread that prepares the next items while the training thread computes."""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Prefetch(Generic[Item]):
    """Hands out ``prepare(0)``, ``prepare(1)`` and so on. A thread prepares up to ``ahead`` of them in advance.

    With ``ahead`` = 0 there is no thread. ``prepare`` must be a pure function. If it raises an error, :meth:`get` of
    that index raises it. The thread starts at the first :meth:`get`, so that the process can fork before.
    """

    def __init__(self, prepare: Callable[[int], Item], *, ahead: int) -> None:
        self.wait_s = 0.0
        """Seconds that the last :meth:`get` took."""
        self._prepare = prepare
        self._ahead = ahead
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefetch")
        self._due: deque[Future[Item]] = deque()
        self._next = 0

    def get(self, index: int) -> Item:
        """Return ``prepare(index)``. Any index is allowed; only an ascending order profits from the thread."""
        started_s = time.monotonic()
        try:
            return self._get(index)
        finally:
            self.wait_s = time.monotonic() - started_s

    def close(self) -> None:
        """End the thread after its current item. :meth:`get` cannot be called afterwards."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _get(self, index: int) -> Item:
        if not self._ahead:
            return self._prepare(index)
        if index != self._next:
            self._forget()
        while len(self._due) <= self._ahead:
            self._due.append(self._thread.submit(self._prepare, index + len(self._due)))
        self._next = index + 1
        return self._due.popleft().result()

    def _forget(self) -> None:
        while self._due:
            self._due.pop().cancel()
