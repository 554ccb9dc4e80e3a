"""Reads a whole shard on several cores, because decoding takes longer than reading.

The cores are used by processes and not by threads: decoding is a series of calls so short that threads would mostly
wait for Python's global lock.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, Self

from holdfast_checkpoint.format.forked_jobs import ForkedJobs
from holdfast_checkpoint.format.shard_index import ShardIndex, StoredTensor
from holdfast_proto.snapshot import TensorEntry

_PROCESSES = 4
"""Largest number of processes: each has a few chunks in memory."""
_SHARES = 64
"""Approximate number of shares of a large shard: so many that no process is left alone with a long one at the end."""
_SHARE_BYTES = 4 << 20
"""Smallest share in raw bytes: for less it does not pay to fork a process."""
_READ_BYTES = 1 << 20


class Reader(Protocol):
    """A ShardReader."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def chunks(self, tensor: StoredTensor) -> Iterator[memoryview]:
        """Yield the raw bytes of a tensor in parts. Raises CheckpointUnreadable."""


TakeTensor = Callable[[TensorEntry, Iterator[memoryview]], None]
"""Takes the raw bytes of a tensor in parts. Each part overwrites the one before, so it must be used immediately."""


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
