"""Copies much memory at once.

Torch copies one tensor after the other, each on all cores: where one of those is busy with something else, all wait
for it at every tensor. Here each thread goes its own way through many, and begins while the training thread still
looks for what is to be copied.
"""

import ctypes
from concurrent.futures import Future
from queue import SimpleQueue

from holdfast_hooks.copy_threads import copy_threads, number_of_threads

_BATCH_BYTES = 4 << 20
"""Copied by a thread at a time."""

# Through ctypes, because that lets other threads run meanwhile.
_memmove = ctypes.CDLL(None).memmove
_memmove.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)

_Move = tuple[int, int, int]
"""To which address, from which, and how many bytes."""
_Batches = SimpleQueue[list[_Move] | None]
"""What is to be copied, and then a None for every thread that copies."""


class HostCopies:
    """A context manager: what is added within has been copied when it is left, by as many threads as torch has."""

    def __init__(self) -> None:
        self._batches: _Batches = SimpleQueue()
        self._batch: list[_Move] = []
        self._batch_bytes = 0
        self._helpers: list[Future[None]] = []

    def __enter__(self) -> "HostCopies":
        self._helpers = [copy_threads().submit(_copy_all, self._batches) for _ in range(number_of_threads() - 1)]
        return self

    def __exit__(self, *error: object) -> None:
        self._batches.put(self._batch)
        for _ in range(len(self._helpers) + 1):
            self._batches.put(None)
        _copy_all(self._batches)
        for helper in self._helpers:
            helper.result()

    def add(self, to: int, source: int, nbytes: int) -> None:
        """Have ``nbytes`` copied from one address to another. Both must stay valid until the end."""
        if nbytes > _BATCH_BYTES:
            for start in range(0, nbytes, _BATCH_BYTES):
                self._batches.put([(to + start, source + start, min(_BATCH_BYTES, nbytes - start))])
            return
        self._batch.append((to, source, nbytes))
        self._batch_bytes += nbytes
        if self._batch_bytes >= _BATCH_BYTES:
            self._batches.put(self._batch)
            self._batch, self._batch_bytes = [], 0


def _copy_all(batches: _Batches) -> None:
    while (batch := batches.get()) is not None:
        for to, source, nbytes in batch:
            _memmove(to, source, nbytes)
