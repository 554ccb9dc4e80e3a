"""The shard that another one builds on: that of the same rank in an earlier, full checkpoint."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from holdfast_checkpoint.checkpoint_errors import CheckpointUnreadable
from holdfast_checkpoint.format.shard_file import ShardFile
from holdfast_checkpoint.format.shard_index import (
    Base,
    StoredTensor,
    index_path,
    load_index,
    shard_path,
    step_directory,
)
from holdfast_proto.snapshot import TensorEntry


class BaseShard:
    """Gives the earlier states of a rank's tensors. A context manager."""

    def __init__(self, checkpoints: Path, base: Base, rank: int) -> None:
        """Open the shard of ``rank`` in the run's directory of checkpoints.

        Raises CheckpointUnreadable if it is not the one that ``base`` names, CheckpointUnavailable if it cannot be
        read.
        """
        directory = step_directory(checkpoints, base.step)
        index = load_index(directory, rank)
        # A difference added to another state would give wrong numbers that look right, so the digest is compared first.
        if index.digest != base.index_digest or index.base is not None:
            raise CheckpointUnreadable(f"{index_path(directory, rank)} is no longer the base that it was")
        self.base = base
        self._file = ShardFile(shard_path(directory, rank))
        self._tensors = {(tensor.entry.name, tensor.entry.global_offset): tensor for tensor in index.tensors}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def holds(self, entry: TensorEntry) -> bool:
        """Return whether the shard has an earlier state of this tensor: the same part, of the same type and size."""
        return self._find(entry) is not None

    @contextlib.contextmanager
    def earlier(self, entry: TensorEntry) -> Iterator["Earlier"]:
        """Open the earlier state of a tensor that the shard :meth:`holds`.

        Raises CheckpointUnreadable if it is damaged, at the end of the block at the latest: only there the digest of
        the whole tensor is known.
        """
        tensor = self._find(entry)
        assert tensor is not None
        state = Earlier(self._file.parts(tensor), entry.nbytes)
        yield state
        state.finish()

    def _find(self, entry: TensorEntry) -> StoredTensor | None:
        tensor = self._tensors.get((entry.name, entry.global_offset))
        if tensor is None or not tensor.is_stored or _kind(tensor.entry) != _kind(entry):
            return None
        return tensor


class Earlier:
    """The raw bytes of an earlier state, which are sliced once and from front to back.

    It has the raw bytes of one part at a time, never the whole tensor.
    """

    def __init__(self, parts: Iterator[memoryview], nbytes: int) -> None:
        self._parts = parts
        self._nbytes = nbytes
        self._position = 0
        self._rest = memoryview(b"")

    def __getitem__(self, part: slice) -> memoryview:
        assert part.start == self._position, "an earlier state is read from front to back"
        size = min(part.stop, self._nbytes) - self._position
        self._position += size
        if not self._rest and size:
            self._rest = next(self._parts)
        if len(self._rest) >= size:
            found, self._rest = self._rest[:size], self._rest[size:]
            return found
        return self._gather(size)

    def finish(self) -> None:
        """Read to the end. Raises CheckpointUnreadable if the bytes do not match their digest."""
        for _ in self._parts:
            pass

    def _gather(self, size: int) -> memoryview:
        """Join parts until there are ``size`` bytes: the earlier state may be stored in other chunks."""
        gathered = bytearray(self._rest)
        while len(gathered) < size:
            missing = size - len(gathered)
            found = next(self._parts)
            gathered += found[:missing]
            self._rest = found[missing:]
        return memoryview(gathered)


def _kind(entry: TensorEntry) -> tuple[object, ...]:
    return entry.dtype, entry.shape, entry.nbytes
