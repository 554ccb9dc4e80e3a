"""Copies many tensors in host memory at once.

Torch copies one tensor after the other, each on all cores: where one of those is busy with something else, all wait
for it at every tensor. Here each thread goes its own way through many.
"""

import ctypes
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from holdfast_hooks.copy_threads import copy_threads

if TYPE_CHECKING:
    import torch

_BATCH_BYTES = 8 << 20
"""Copied by a thread at a time."""

# Through ctypes, because that lets other threads run meanwhile.
_memmove = ctypes.CDLL(None).memmove
_memmove.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)

_Move = tuple[int, int, int]
"""To which address, from which, and how many bytes."""


class HostCopies:
    """Collects copies, to be done together."""

    def __init__(self) -> None:
        self._moves: list[_Move] = []

    def add(self, destination: "torch.Tensor", source: "torch.Tensor") -> None:
        """Have ``source`` copied to ``destination``, which is contiguous and of its shape and dtype.

        Both must live until :meth:`run`. What is not stored element by element in order is copied at once.
        """
        if source.is_contiguous() and not source.is_conj() and not source.is_neg():
            self._moves.append((destination.data_ptr(), source.data_ptr(), destination.nbytes))
        else:
            destination.copy_(source)

    def run(self) -> None:
        """Copy all."""
        first, *others = _batches(self._moves)
        done = copy_threads().map(_move, others)
        _move(first)
        for _ in done:
            pass


def _batches(moves: Iterable[_Move]) -> Iterator[list[_Move]]:
    batch: list[_Move] = []
    nbytes = 0
    for move in _small(moves):
        batch.append(move)
        nbytes += move[2]
        if nbytes >= _BATCH_BYTES:
            yield batch
            batch, nbytes = [], 0
    yield batch


def _small(moves: Iterable[_Move]) -> Iterator[_Move]:
    """Cut large moves into those of a batch."""
    for to, source, nbytes in moves:
        for start in range(0, nbytes, _BATCH_BYTES):
            yield to + start, source + start, min(_BATCH_BYTES, nbytes - start)


def _move(batch: list[_Move]) -> None:
    for to, source, nbytes in batch:
        _memmove(to, source, nbytes)
