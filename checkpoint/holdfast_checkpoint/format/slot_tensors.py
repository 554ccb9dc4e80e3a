"""Reads the tensors of a slot from its file, and writes them to it.

By read and write and not through mapped memory: the kernel would have to map each page before and unmap it after, and
to clear each new one first. That takes longer than to copy it.
"""

import mmap
import os
from collections.abc import Iterable
from pathlib import Path

from holdfast_checkpoint.checkpoint_errors import CheckpointError
from holdfast_proto.snapshot import TensorEntry

_READ_BYTES = 2 << 20
"""Size of the buffer in bytes: the chunk that codecs ask for."""


class SlotFile:
    """The file of a slot. A context manager. Every method raises OSError as the system calls do."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("r+b", buffering=0)
        self._buffer = memoryview(mmap.mmap(-1, _READ_BYTES))

    def __enter__(self) -> "SlotFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, offset: int, nbytes: int) -> memoryview:
        """Return bytes from ``offset``, valid until the next call. Raises CheckpointError if the file has fewer."""
        if nbytes > len(self._buffer):
            self._buffer = memoryview(mmap.mmap(-1, nbytes))
        found = self._buffer[:nbytes]
        left = found
        while left:
            count = os.preadv(self._file.fileno(), [left], offset)
            if not count:
                raise CheckpointError(f"snapshot slot {self.path} ends before its last tensor does")
            left, offset = left[count:], offset + count
        return found

    def place(self, entry: TensorEntry, parts: Iterable[memoryview]) -> None:
        """Write the bytes of a tensor, which come in parts, to its offset in the slot."""
        position = entry.offset
        for part in parts:
            left = part
            while left:
                count = os.pwrite(self._file.fileno(), left, position)
                left, position = left[count:], position + count


class TensorBytes:
    """The bytes of a tensor in a slot. A slice is read from the file, and is valid until the next one."""

    def __init__(self, slot: SlotFile, entry: TensorEntry) -> None:
        self._slot = slot
        self._entry = entry

    def __len__(self) -> int:
        return self._entry.nbytes

    def __getitem__(self, part: slice) -> memoryview:
        start, stop, _ = part.indices(len(self))
        return self._slot.read(self._entry.offset + start, stop - start)
