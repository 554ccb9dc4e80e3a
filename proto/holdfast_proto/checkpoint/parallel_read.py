"""Reads a whole shard into memory with several threads, as decoding and digests take longer than the disk does."""

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol, Self

from holdfast_proto.checkpoint.errors import read_errors
from holdfast_proto.checkpoint.sealed_json import new_digest
from holdfast_proto.checkpoint.shard_index import ShardIndex, StoredTensor

_THREADS = 4
"""At most: each holds a few chunks in memory."""
_READ_BYTES = 1 << 20


class Reader(Protocol):
    """A ShardReader."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def read(self, tensor: StoredTensor, into: memoryview) -> None:
        """Read a tensor into memory of its size. Raises CheckpointUnreadable."""


def read_tensors(open_reader: Callable[[], Reader], index: ShardIndex, into: Mapping[int, memoryview]) -> None:
    """Read tensors to where ``into`` says by their position in the index, each thread with a reader of its own.

    Raises CheckpointUnreadable for the first in the order of the index that is not what it should be.
    """
    of_thread = threading.local()
    with ExitStack() as readers:

        def read(number: int) -> None:
            if not hasattr(of_thread, "reader"):
                of_thread.reader = readers.enter_context(open_reader())
            of_thread.reader.read(index.tensors[number], into[number])

        pool = ThreadPoolExecutor(min(_THREADS, len(os.sched_getaffinity(0))))
        numbers = [number for number, tensor in enumerate(index.tensors) if tensor.is_stored]
        jobs = [pool.submit(read, number) for number in numbers]
        try:
            for job in jobs:
                job.result()
        finally:
            pool.shutdown(cancel_futures=True)  # before the readers are closed


def file_digest(path: Path) -> tuple[int, str]:
    """Return size and digest of a file. Raises CheckpointUnreadable."""
    digest = new_digest()
    nbytes = 0
    buffer = memoryview(bytearray(_READ_BYTES))
    with read_errors(path), path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            nbytes += count
    return nbytes, digest.hexdigest()
