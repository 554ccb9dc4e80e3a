"""How fast a state is loaded, from the node's memory and from the disk.

From memory, ``restore`` loads a slot into a new model and optimizer. The peer is torch's ``copy_`` of this process's
tensors into the same model, and into new tensors for the state that a new optimizer does not have. Before either, this
process returns its freed memory to the kernel. A rank that starts has no freed memory either, so new tensors are new
memory.

From the disk, the time of the agent's worker counts from the job to its answer, with every digest compared. The peer
reads the stored file, which is smaller, and writes it to the slot as it is. Both find nothing of the file in memory.
Both get a new slot, as at the start of a run: its pages are reserved and untouched.
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
    """Return the seconds that a rank takes to restore ``state`` from a slot."""
    give_back_freed_memory()
    start_s = time.perf_counter()
    restore(slot, state, rank=0)
    return time.perf_counter() - start_s


def memory_copy_s(tensors: Sequence[Tensor], existing: Sequence[Tensor]) -> float:
    """Return the seconds for copying ``tensors`` to the ``existing`` ones, and to new memory where those end."""
    give_back_freed_memory()
    start_s = time.perf_counter()
    kept = []  # otherwise the next one would get the same memory
    for tensor, place in zip_longest(tensors, existing):
        kept.append(torch.empty_like(tensor) if place is None else place)
        kept[-1].copy_(tensor)
    return time.perf_counter() - start_s


_READ_BYTES = 1 << 20


class DiskLoads:
    """Loads one rank's checkpoint from the disk with a worker, as at the start of a run. A context manager.

    ``slot`` is a file in shared memory. It is created anew for each load.
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
        # The host of a virtual machine takes back memory that has been free for a while, and is slow to give it again.
        # Reading the file and dropping it leaves the kernel with memory that was in use just now, so neither waits.
        with self._shard.open("rb", buffering=0) as file:
            while file.readinto(self._buffer):
                pass
        forget(self._shard)

    def load_s(self) -> float:
        """Return the seconds that the worker takes to verify the shard and to unpack it into a slot."""
        self._prepare()
        start_s = time.perf_counter()
        job = self._workers.run("restore", directory=self._directory, rank=0, slot=str(self._slot), generation=2)
        asyncio.run(job)
        return time.perf_counter() - start_s

    def read_s(self) -> float:
        """Return the seconds for copying the shard into a slot, as it is."""
        self._prepare()
        start_s = time.perf_counter()
        with self._slot.open("r+b", buffering=0) as slot, self._shard.open("rb", buffering=0) as file:
            slot.seek(DATA_OFFSET)
            while count := file.readinto(self._buffer):
                slot.write(self._buffer[:count])
        return time.perf_counter() - start_s


def give_back_freed_memory() -> None:
    """Make the C library (glibc) return all freed memory to the kernel."""
    ctypes.CDLL(None).malloc_trim(0)


def forget(path: Path) -> None:
    """Drop a file from the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
