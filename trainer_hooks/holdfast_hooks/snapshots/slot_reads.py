"""Fills tensors from the file of a slot.

It reads the file and does not copy from mapped memory: a new process would first have to map each page, and later to
unmap it.
"""

import ctypes
import functools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast_hooks.snapshots.host_copies import copy_threads
from holdfast_proto.snapshot import SnapshotError, TensorEntry

if TYPE_CHECKING:
    import torch

_READ_BYTES = 8 << 20
"""Most bytes of one read. Smaller tensors are put together until a thread has this many."""

_Read = tuple[memoryview, int]
"""Memory to fill, and the offset in the file."""


def fill(path: Path, tensors: "Iterable[tuple[TensorEntry, torch.Tensor]]") -> None:
    """Read the bytes of entries into contiguous tensors in host memory, with as many threads as torch has.

    The caller keeps the tensors alive. Raises OSError, or SnapshotError if the file ends too early.
    """
    reads = (read for entry, tensor in tensors for read in _reads(entry, tensor))
    with path.open("rb", buffering=0) as file:
        is_whole = copy_threads().map(functools.partial(_read_all, file.fileno()), _batches(reads))
        if not all(list(is_whole)):  # before the file is closed
            raise SnapshotError(f"{path}: ends before its last tensor does")


def _reads(entry: TensorEntry, tensor: "torch.Tensor") -> Iterator[_Read]:
    memory = memoryview((ctypes.c_char * entry.nbytes).from_address(tensor.data_ptr())).cast("B")
    for start in range(0, entry.nbytes, _READ_BYTES):
        yield memory[start : start + _READ_BYTES], entry.offset + start


def _batches(reads: Iterable[_Read]) -> Iterator[list[_Read]]:
    batch: list[_Read] = []
    nbytes = 0
    for read in reads:
        batch.append(read)
        nbytes += len(read[0])
        if nbytes >= _READ_BYTES:
            yield batch
            batch, nbytes = [], 0
    yield batch


def _read_all(descriptor: int, batch: list[_Read]) -> bool:
    return all(_read(descriptor, memory, offset) for memory, offset in batch)


def _read(descriptor: int, memory: memoryview, offset: int) -> bool:
    """Fill ``memory``; return whether the file had enough bytes."""
    while memory and (count := os.preadv(descriptor, [memory], offset)):
        memory, offset = memory[count:], offset + count
    return not memory
