"""Copies much memory at once, and nothing that lies in place: frozen parameters and buffers.

Torch copies one tensor after the other, each on all cores: where one of those is busy with something else, all wait
for it at every tensor. Here each thread goes its own way through many, and begins while the training thread still
looks for what is to be copied.
"""

import ctypes
from concurrent.futures import Future
from queue import SimpleQueue
from typing import NamedTuple

from holdfast_hooks.snapshots.copy_threads import copy_threads, number_of_threads

_BATCH_BYTES = 4 << 20
"""Copied by a thread at a time."""
_SMALLEST_BYTES = 64 << 10
"""Copying less takes no longer than asking whether it lies there."""
_SAMPLES = 8
_SAMPLE_BYTES = 64
"""A cache line."""

# Through ctypes, because that lets other threads run meanwhile.
_memmove = ctypes.CDLL(None).memmove
_memmove.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class _Move(NamedTuple):
    to: int
    source: int
    nbytes: int
    compares: bool
    """Look whether it lies there already."""


_Batches = SimpleQueue[list[_Move] | None]
"""What is to be copied, and then a None for every thread that copies."""


class HostCopies:
    """A context manager: what is added within has been copied when it is left, by as many threads as torch has."""

    def __init__(self) -> None:
        self.unchanged_bytes = 0
        """Of what was added, those that lay there already; known when the context is left."""
        self._batches: _Batches = SimpleQueue()
        self._batch: list[_Move] = []
        self._batch_bytes = 0
        self._helpers: list[Future[int]] = []

    def __enter__(self) -> "HostCopies":
        self._helpers = [copy_threads().submit(_copy_all, self._batches) for _ in range(number_of_threads() - 1)]
        return self

    def __exit__(self, *error: object) -> None:
        self._batches.put(self._batch)
        for _ in range(len(self._helpers) + 1):
            self._batches.put(None)
        self.unchanged_bytes = _copy_all(self._batches) + sum(helper.result() for helper in self._helpers)

    def add(self, to: int, source: int, nbytes: int) -> None:
        """Have ``nbytes`` copied from one address to another, unless they are the same.

        Both addresses must stay valid until the end.
        """
        compares = may_be_unchanged(to, source, nbytes)
        if nbytes > _BATCH_BYTES:
            for start in range(0, nbytes, _BATCH_BYTES):
                size = min(_BATCH_BYTES, nbytes - start)
                self._batches.put([_Move(to + start, source + start, size, compares)])
            return
        self._batch.append(_Move(to, source, nbytes, compares))
        self._batch_bytes += nbytes
        if self._batch_bytes >= _BATCH_BYTES:
            self._batches.put(self._batch)
            self._batch, self._batch_bytes = [], 0


def may_be_unchanged(to: int, source: int, nbytes: int) -> bool:
    """Whether ``nbytes`` at two addresses may be the same: a few cache lines tell of most tensors that were trained.

    Contents are compared because torch's version counters miss what is written through ``.data``.
    """
    if nbytes < _SMALLEST_BYTES or _memcmp(to, source, _SAMPLE_BYTES):
        return False
    stride = (nbytes - _SAMPLE_BYTES) // (_SAMPLES - 1)
    return not any(_memcmp(to + offset, source + offset, _SAMPLE_BYTES) for offset in range(stride, nbytes, stride))


def _copy_all(batches: _Batches) -> int:
    """Return of how many bytes no copy was needed."""
    unchanged_bytes = 0
    while (batch := batches.get()) is not None:
        for to, source, nbytes, compares in batch:
            if compares and not _memcmp(to, source, nbytes):
                unchanged_bytes += nbytes
            else:
                _memmove(to, source, nbytes)
    return unchanged_bytes
