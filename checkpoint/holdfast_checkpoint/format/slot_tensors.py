"""The tensors of a slot, read from its file and written to it.

Not through mapped memory: each page would have to be mapped before and unmapped after, and a new one cleared first,
which takes longer than copying it.
"""

import mmap
import os
from collections.abc import Iterable
from pathlib import Path

from holdfast_checkpoint.errors import CheckpointError
from holdfast_proto.snapshot import TensorEntry

_READ_BYTES = 2 << 20
"""As codecs ask for."""


class SlotFile:
    """The file of a slot. A context manager. All raise OSError as the system calls do."""

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
        """Write the bytes of a tensor, which come in parts, to where it lies."""
        position = entry.offset
        for part in parts:
            left = part
            while left:
                count = os.pwrite(self._file.fileno(), left, position)
                left, position = left[count:], position + count


class TensorBytes:
    """The bytes of a tensor in a slot: a part of them is read when it is asked for, and valid until the next is."""

    def __init__(self, slot: SlotFile, entry: TensorEntry) -> None:
        self._slot = slot
        self._entry = entry

    def __len__(self) -> int:
        return self._entry.nbytes

    def __getitem__(self, part: slice) -> memoryview:
        start, stop, _ = part.indices(len(self))
        return self._slot.read(self._entry.offset + start, stop - start)
