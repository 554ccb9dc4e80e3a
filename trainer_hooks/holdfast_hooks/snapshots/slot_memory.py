"""Makes slots ready for their first snapshot, off the training thread: later ones are not faster then."""

import ctypes
import mmap
import os
import sys
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from holdfast_hooks.once import OnceLog
from holdfast_proto.snapshot import Slot

_MADV_POPULATE_WRITE = 23
_AT_ONCE_BYTES = 8 << 20
"""While pages are mapped no other thread can get memory from the kernel: only a little at a time."""
_PORTABLE = 1
"""cudaHostRegisterPortable: locked for every GPU context."""

# Through ctypes, because mmap.madvise() keeps all other threads from running.
_madvise = ctypes.CDLL(None, use_errno=True).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def make_ready(slots: Sequence[Slot], once: OnceLog) -> threading.Thread:
    """Map the pages of slots in shared memory and lock them for a GPU that this process uses; return the thread.

    Contents stay as they are. Where the kernel or the driver does not do it, the first copies are slower.
    """
    thread = threading.Thread(target=_make_ready, args=(slots, once), name="holdfast-slots", daemon=True)
    thread.start()
    return thread


def _make_ready(slots: Sequence[Slot], once: OnceLog) -> None:
    for slot in slots:
        address = ctypes.addressof(ctypes.c_char.from_buffer(slot.buffer))
        _populate(address, slot.nbytes, once)
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            _lock(slot.buffer, address, once)


def _populate(address: int, nbytes: int, once: OnceLog) -> None:
    for start in range(0, nbytes, _AT_ONCE_BYTES):
        if _madvise(address + start, min(_AT_ONCE_BYTES, nbytes - start), _MADV_POPULATE_WRITE):
            once.warn("the first snapshots will be slower", os.strerror(ctypes.get_errno()))
            return


def _lock(buffer: mmap.mmap, address: int, once: OnceLog) -> None:
    """Register memory with CUDA, for as long as it is mapped: only then a GPU copies to it while it computes."""
    import torch

    cuda: Any = torch.cuda
    runtime = cuda.cudart()
    error = int(runtime.cudaHostRegister(address, len(buffer), _PORTABLE))
    if error:
        once.warn("snapshots will hold up the training thread", f"cudaHostRegister failed with error {error}")
    else:
        weakref.finalize(buffer, runtime.cudaHostUnregister, address).atexit = False  # the driver is gone then
