"""Reads a whole shard on several cores, as decoding takes longer than the disk does.

By processes and not by threads: decoding is a row of calls so short that threads would mostly wait for Python's lock.
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
"""At most: each holds a few chunks in memory."""
_SHARES = 64
"""About as many, so that no process is left alone with much."""
_SHARE_BYTES = 4 << 20
"""For less it does not pay to start processes."""
_READ_BYTES = 1 << 20


class Reader(Protocol):
    """A ShardReader."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def chunks(self, tensor: StoredTensor) -> Iterator[memoryview]:
        """Yield the raw bytes of a tensor in parts. Raises CheckpointUnreadable."""


TakeTensor = Callable[[TensorEntry, Iterator[memoryview]], None]
"""Takes the raw bytes of a tensor, part by part: each is overwritten by the next."""


def read_tensors(path: Path, open_reader: Callable[[], Reader], index: ShardIndex, place: TakeTensor) -> None:
    """Read the tensors that are stored in the shard at ``path``, and give them to ``place``, in any order.

    What that does stays in the process that does it, which is not always this one, unless it writes to a file.
    Raises CheckpointUnreadable for the first that is not what it should be.
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
    """Yield the stored tensors in shares of neighbours, of similar sizes unless one is large."""
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
    """Have the file in the kernel's memory when others come to it: they do not read it in one go, as disks like it."""
    # What cannot be read shows to those who need it; where the file system cannot do this, they wait for the disk.
    with contextlib.suppress(OSError), path.open("rb") as file, Path(os.devnull).open("wb") as nowhere:
        while os.sendfile(nowhere.fileno(), file.fileno(), None, _READ_BYTES):
            pass
