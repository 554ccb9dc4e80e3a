"""Reads tensors of a shard, differences too, on several cores, and lets no wrong byte through."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, Self

from holdfast_checkpoint.checkpoint_errors import CheckpointUnreadable
from holdfast_checkpoint.codec.codec_registry import PayloadError, codec_named
from holdfast_checkpoint.format.base_shard import BaseShard
from holdfast_checkpoint.format.forked_jobs import ForkedJobs
from holdfast_checkpoint.format.shard_file import ShardFile
from holdfast_checkpoint.format.shard_index import ShardIndex, StoredTensor, load_index_file
from holdfast_proto.snapshot import TensorEntry

TakeTensor = Callable[[TensorEntry, Iterator[memoryview]], None]
"""Takes the raw bytes of a tensor in parts. Each part overwrites the one before, so it must be used immediately."""


__all__ = ["ShardReader", "TakeTensor", "verify_shard"]


class ShardReader:
    """Reads any tensor of one shard without the others. A context manager.

    A tensor that is stored as a difference is read together with its earlier state, from the shard that this one
    builds on. Memory: a few MiB, whatever the size of the tensors.
    """

    def __init__(self, path: Path, index: ShardIndex | None = None) -> None:
        """Open a shard. Without ``index``, the index next to it is read if a tensor is a difference."""
        self.path = path
        self._index = index
        self._file = ShardFile(path)
        self._base: BaseShard | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if self._base is not None:
            self._base.close()

    def chunks(self, tensor: StoredTensor, into: memoryview | None = None) -> Iterator[memoryview]:
        """Yield the raw bytes of a tensor in parts.

        The parts are in ``into``, which has the tensor's size; without it the next part overwrites the one before.
        Raises CheckpointUnreadable if anything is damaged, here or in the earlier state. That may be after the last
        part: do not use the parts before.
        """
        if not self._is_difference(tensor):
            yield from self._file.parts(tensor, into)
            return
        base = self._open_base()
        if not base.holds(tensor.entry):
            raise self._file.damage(tensor, f"is a difference to step {base.base.step}, which lacks it")
        with base.earlier(tensor.entry) as earlier:
            try:
                yield from self._file.parts(tensor, into, earlier)
            except CheckpointUnreadable:
                # Damage of the earlier state shows here as well. finish() raises for the base if the damage is there,
                # so that the message names the right file.
                earlier.finish()
                raise

    def read(self, tensor: StoredTensor, into: memoryview) -> None:
        """Read a tensor into memory of its size. Raises CheckpointUnreadable."""
        for _ in self.chunks(tensor, into):
            pass

    def read_all(self, index: ShardIndex, place: TakeTensor) -> None:
        """Read the whole shard and pass each of its tensors to ``place``, which takes all parts.

        It uses several cores: ``place`` runs in forked processes. Raises CheckpointUnreadable if any byte is wrong,
        also one that belongs to no tensor.
        """
        self._file.check_extent(index)
        read_tensors(self.path, lambda: ShardReader(self.path, index), index, place)

    def verify(self, index: ShardIndex) -> None:
        """Read the whole shard and keep nothing. Raises as :meth:`read_all` does.

        It uses one core, because ranks may be training.
        """
        self._index = index
        self._file.check_extent(index)
        for tensor in index.tensors:
            if tensor.is_stored:
                for _ in self.chunks(tensor):
                    pass

    def _is_difference(self, tensor: StoredTensor) -> bool:
        try:
            return codec_named(tensor.codec).needs_previous(tensor.descriptor)
        except PayloadError as error:
            raise self._file.damage(tensor, str(error)) from error

    def _open_base(self) -> BaseShard:
        if self._base is None:
            if self._index is None:
                self._index = load_index_file(self.path.with_suffix(".json"))
            if self._index.base is None:
                raise CheckpointUnreadable(f"{self.path} holds differences, but its index names no base")
            self._base = BaseShard(self.path.parent.parent, self._index.base, self._index.rank)
        return self._base


def verify_shard(path: Path, index: ShardIndex) -> None:
    """Read the whole shard. Raises CheckpointUnreadable if it does not match ``index``."""
    with ShardReader(path) as reader:
        reader.verify(index)


# Reads a whole shard on several cores, because decoding takes longer than reading.
#
# The cores are used by processes and not by threads: decoding is a series of calls so short that threads would mostly
# wait for Python's global lock.

_PROCESSES = 4
"""Largest number of processes: each has a few chunks in memory."""
_SHARES = 64
"""Approximate number of shares of a large shard: enough that no process works alone on a long one at the end."""
_SHARE_BYTES = 4 << 20
"""Smallest share in raw bytes: for less it does not pay to fork a process."""
_READ_BYTES = 1 << 20


class Reader(Protocol):
    """A ShardReader."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def chunks(self, tensor: StoredTensor) -> Iterator[memoryview]:
        """Yield the raw bytes of a tensor in parts. Raises CheckpointUnreadable."""


def read_tensors(path: Path, open_reader: Callable[[], Reader], index: ShardIndex, place: TakeTensor) -> None:
    """Read the tensors that are stored in the shard at ``path`` and pass each to ``place``, in any order.

    ``place`` may run in another process, so that only what it writes to a file reaches the caller. Raises
    CheckpointUnreadable for the first tensor that is damaged.
    """
    shares = list(_shares(index))

    def read(share: int) -> None:
        with open_reader() as reader:
            for tensor in shares[share]:
                place(tensor.entry, reader.chunks(tensor))

    if len(shares) <= 1:
        for share in range(len(shares)):
            read(share)
        return
    processes = min(_PROCESSES, len(os.sched_getaffinity(0)), len(shares))
    with ForkedJobs(read, len(shares), processes=processes) as jobs:
        _read_ahead(path)
        jobs.finish()


def _shares(index: ShardIndex) -> Iterator[list[StoredTensor]]:
    """Yield the stored tensors in shares of neighbours, of similar sizes unless one tensor is large."""
    least_bytes = max(_SHARE_BYTES, index.raw_bytes // _SHARES)
    share: list[StoredTensor] = []
    nbytes = 0
    for tensor in index.tensors:
        if tensor.is_stored:
            share.append(tensor)
            nbytes += tensor.entry.nbytes
            if nbytes >= least_bytes:
                yield share
                share, nbytes = [], 0
    if share:
        yield share


def _read_ahead(path: Path) -> None:
    """Bring the file into the page cache in one sequential pass, which disks do best.

    The processes themselves read here and there. This is a help only: a process that cannot read what it needs reports
    the error itself.
    """
    with contextlib.suppress(OSError), path.open("rb") as file, Path(os.devnull).open("wb") as nowhere:
        while os.sendfile(nowhere.fileno(), file.fileno(), None, _READ_BYTES):
            pass
