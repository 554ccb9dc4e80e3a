"""Copies many tensors between places in host memory, and leaves out what the target already holds.

Torch copies one tensor after the other, each with all threads. If one core is busy with something else, all threads
wait for it at every tensor. Here each thread copies tensors of its own, and starts while the training thread still
looks for tensors to copy.

Frozen parameters and buffers are the same in every snapshot: they cost only a comparison.
"""

import contextlib
import ctypes
import os
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import NamedTuple

_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}
"""By process and number of threads. A forked process inherits an entry and none of its threads: it makes its own."""


def copy_threads() -> ThreadPoolExecutor:
    """Return the threads of this process, which start with their first work."""
    key = os.getpid(), number_of_threads()
    if key not in _pools:
        _pools[key] = ThreadPoolExecutor(key[1], f"holdfast-copies-{key[0]}")
    return _pools[key]


def end_copy_threads() -> None:
    """End the threads of this process. A later copy starts new ones."""
    mine = [key for key in _pools if key[0] == os.getpid()]
    for key in mine:
        _pools.pop(key).shutdown()


def number_of_threads() -> int:
    """Return the number of these threads, that of torch's own."""
    import torch

    return torch.get_num_threads()


_BATCH_BYTES = 4 << 20
"""Bytes that a thread copies before it asks for more."""
_SMALLEST_BYTES = 64 << 10
"""A copy of fewer bytes takes no longer than the comparison."""
_SAMPLES = 8
"""Places to compare before the whole: a tensor that was trained mostly differs in one of them."""
_SAMPLE_BYTES = 64
"""A cache line."""

# Through ctypes, because it releases the interpreter's lock during the call: only so do the threads run in parallel.
_memmove = ctypes.CDLL(None).memmove
_memmove.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class _Move(NamedTuple):
    to: int
    source: int
    nbytes: int
    compares: bool
    """Whether to compare first."""


_Batches = SimpleQueue[list[_Move] | None]
"""Moves to make, and then a None for every thread that copies."""


class HostCopies:
    """A context manager that makes the copies that are added in it, with as many threads as torch has.

    The training thread is one of these threads: it adds first, and then copies like the others.
    """

    def __init__(self) -> None:
        self.unchanged_bytes = 0
        """Bytes that needed no copy, because they were the same; known at the end of the context."""
        self._batches: _Batches = SimpleQueue()
        self._batch: list[_Move] = []
        self._batch_bytes = 0
        self._helpers: list[Future[int]] = []
        self._asked = 0
        """Helpers that were asked of the pool. The last may have found no thread."""

    def __enter__(self) -> "HostCopies":
        with contextlib.suppress(RuntimeError):  # the kernel gives no new thread: fewer copy
            for _ in range(number_of_threads() - 1):
                self._asked += 1
                self._helpers.append(copy_threads().submit(_copy_all, self._batches))
        return self

    def __exit__(self, *error: object) -> None:
        self._batches.put(self._batch)
        # The pool keeps the work that found no thread, for a later one. That one must find its end here too.
        for _ in range(self._asked + 1):
            self._batches.put(None)
        self.unchanged_bytes = _copy_all(self._batches) + sum(helper.result() for helper in self._helpers)

    def add(self, to: int, source: int, nbytes: int) -> None:
        """Add a copy of ``nbytes`` from one address to another, for the case that they differ.

        Both addresses must stay valid until the end of the context.
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
    """Whether ``nbytes`` at two addresses may be the same, from a few cache lines of them.

    The bytes are compared, and not torch's version counters, because those miss a write through ``.data``.
    """
    if nbytes < _SMALLEST_BYTES or _memcmp(to, source, _SAMPLE_BYTES):
        return False
    stride = (nbytes - _SAMPLE_BYTES) // (_SAMPLES - 1)
    return not any(_memcmp(to + offset, source + offset, _SAMPLE_BYTES) for offset in range(stride, nbytes, stride))


def _copy_all(batches: _Batches) -> int:
    """Make moves until the None; return the number of bytes that needed no copy."""
    unchanged_bytes = 0
    while (batch := batches.get()) is not None:
        for to, source, nbytes, compares in batch:
            if compares and not _memcmp(to, source, nbytes):
                unchanged_bytes += nbytes
            else:
                _memmove(to, source, nbytes)
    return unchanged_bytes
