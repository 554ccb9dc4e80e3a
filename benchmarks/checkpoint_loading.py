"""How fast a state comes back: from the node's memory beside a memory copy, from the disk beside reading the file.

From memory: ``restore`` of a slot into a model and an optimizer that were just made, beside torch's ``copy_`` of this
process's tensors into the same model, and into new tensors for the state that a new optimizer does not have. What this
process has freed goes back to the kernel before either, as a rank that starts has none: new tensors are new memory.

From the disk: what the agent's worker does from the job to its answer, every digest compared, beside reading the
stored file, which is smaller, and writing it to the slot as it is. Both find nothing of the file in memory, and a slot
that is new, as at the start of a run: reserved, but no page of it was touched.
"""

import asyncio
import ctypes
import os
import time
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

import torch
from torch import Tensor

from holdfast_agent.checkpoints.workers import CheckpointWorkers
from holdfast_checkpoint.format.shard_index import load_index, shard_path, slot_bytes_needed
from holdfast_hooks import Stateful
from holdfast_hooks.restore.slot_restore import restore
from holdfast_proto.snapshot import DATA_OFFSET, allocate


def memory_load_s(slot: Path, state: Mapping[str, Stateful]) -> float:
    """Return how long a rank takes to restore ``state`` from a slot."""
    give_back_freed_memory()
    start_s = time.perf_counter()
    restore(slot, state, rank=0)
    return time.perf_counter() - start_s


def memory_copy_s(tensors: Sequence[Tensor], existing: Sequence[Tensor]) -> float:
    """Return how long copies of ``tensors`` take to the ``existing``, and to new memory for those beyond them."""
    give_back_freed_memory()
    start_s = time.perf_counter()
    kept = []  # else the next one would get the same memory
    for tensor, place in zip_longest(tensors, existing):
        kept.append(torch.empty_like(tensor) if place is None else place)
        kept[-1].copy_(tensor)
    return time.perf_counter() - start_s


_READ_BYTES = 1 << 20


class DiskLoads:
    """Loads of one checkpoint of one rank from the disk, by a worker as at the start of a run. A context manager.

    ``slot``: a file in shared memory, which is made anew for each load to fill.
    """

    def __init__(self, directory: Path, slot: Path) -> None:
        self._directory = directory
        self._slot = slot
        self._shard = shard_path(directory, 0)
        self._slot_bytes = slot_bytes_needed(load_index(directory, 0))
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._workers = CheckpointWorkers(1, background=False)
        self.load_s()  # starts the worker

    def __enter__(self) -> "DiskLoads":
        return self

    def __exit__(self, *_: object) -> None:
        self._workers.close()
        self._slot.unlink()

    def _prepare(self) -> None:
        self._slot.unlink(missing_ok=True)
        allocate(self._slot, self._slot_bytes)
        # The host of a virtual machine takes back what has been free for a while, and is slow to give it again. So that
        # this hits neither, the kernel is given memory for the file that was in use just now.
        with self._shard.open("rb", buffering=0) as file:
            while file.readinto(self._buffer):
                pass
        forget(self._shard)

    def load_s(self) -> float:
        """Return how long the worker takes to verify the shard and to unpack it into a slot."""
        self._prepare()
        start_s = time.perf_counter()
        job = self._workers.run("restore", directory=self._directory, rank=0, slot=str(self._slot), generation=2)
        asyncio.run(job)
        return time.perf_counter() - start_s

    def read_s(self) -> float:
        """Return how long it takes to copy the shard into a slot, as it is."""
        self._prepare()
        start_s = time.perf_counter()
        with self._slot.open("r+b", buffering=0) as slot, self._shard.open("rb", buffering=0) as file:
            slot.seek(DATA_OFFSET)
            while count := file.readinto(self._buffer):
                slot.write(self._buffer[:count])
        return time.perf_counter() - start_s


def give_back_freed_memory() -> None:
    """Have the C library, glibc, keep nothing."""
    ctypes.CDLL(None).malloc_trim(0)


def forget(path: Path) -> None:
    """Drop a file from the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
