"""Reads a whole shard into shared memory on several cores, as decoding takes longer than the disk does.

By processes and not by threads: decoding is a row of calls so short that threads would mostly wait for Python's lock.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol, Self

from holdfast_proto.checkpoint.errors import read_errors
from holdfast_proto.checkpoint.forked_jobs import ForkedJobs
from holdfast_proto.checkpoint.shard_index import ShardIndex, StoredTensor
from holdfast_proto.pages import map_pages

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

    def read(self, tensor: StoredTensor, into: memoryview) -> None:
        """Read a tensor into memory of its size. Raises CheckpointUnreadable."""


def read_tensors(
    path: Path, open_reader: Callable[[], Reader], index: ShardIndex, into: Mapping[int, memoryview]
) -> None:
    """Read tensors of the shard at ``path`` to where ``into`` says by their position in the index.

    Raises CheckpointUnreadable for the first that is not what it should be.
    """
    shares = list(_shares(index))

    def read(share: int) -> None:
        with open_reader() as reader:
            for number in shares[share]:
                if into[number]:
                    map_pages(into[number])
                reader.read(index.tensors[number], into[number])

    if len(shares) <= 1:
        for share in range(len(shares)):
            read(share)
        return
    processes = min(_PROCESSES, len(os.sched_getaffinity(0)), len(shares))
    with ForkedJobs(read, len(shares), processes=processes) as jobs:
        _read_ahead(path)
        jobs.finish()


def _shares(index: ShardIndex) -> Iterator[list[int]]:
    """Yield the numbers of the stored tensors in shares of neighbours, of similar sizes unless one is large."""
    least_bytes = max(_SHARE_BYTES, index.raw_bytes // _SHARES)
    share: list[int] = []
    nbytes = 0
    for number, tensor in enumerate(index.tensors):
        if tensor.is_stored:
            share.append(number)
            nbytes += tensor.entry.nbytes
            if nbytes >= least_bytes:
                yield share
                share, nbytes = [], 0
    if share:
        yield share


def _read_ahead(path: Path) -> None:
    """Have the file in the kernel's memory when others come to it: they do not read it in one go, as disks like it."""
    buffer = bytearray(_READ_BYTES)
    with read_errors(path), path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
