"""Prepares slots for their first snapshot, off the training thread, so that it is as fast as later ones.

A new mapping has no pages. Without preparation the first copy would stop at every page for the kernel to map it.
"""

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
"""Bytes to map in one call. During the call no other thread of the process can get memory from the kernel."""
_PORTABLE = 1
"""cudaHostRegisterPortable: lock memory for every GPU context."""

# Through ctypes, because mmap.madvise() holds the interpreter's lock during the call.
_madvise = ctypes.CDLL(None, use_errno=True).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class SlotPreparation:
    """A thread that maps the pages of slots in shared memory and locks them for a GPU that this process uses.

    It leaves the contents as they are. If the kernel or the driver refuses, copies are slower.
    """

    def __init__(self, slots: Sequence[Slot], once: OnceLog) -> None:
        self._once = once
        self._stopped = threading.Event()
        # The slots are an argument and no attribute: a thread forgets those at its end, and then they can be unmapped.
        self._thread = threading.Thread(target=self._run, args=(slots,), name="holdfast-slots", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until all slots are prepared."""
        self._thread.join()

    def stop(self, timeout_s: float) -> None:
        """Prepare no more; wait for the thread for up to ``timeout_s``."""
        self._stopped.set()
        self._thread.join(timeout_s)

    def _run(self, slots: Sequence[Slot]) -> None:
        for slot in slots:
            address = ctypes.addressof(ctypes.c_char.from_buffer(slot.buffer))
            self._populate(address, slot.nbytes)
            torch = sys.modules.get("torch")
            if torch is not None and torch.cuda.is_initialized() and not self._stopped.is_set():
                _lock(slot.buffer, address, self._once)

    def _populate(self, address: int, nbytes: int) -> None:
        for start in range(0, nbytes, _AT_ONCE_BYTES):
            if self._stopped.is_set():
                return
            if _madvise(address + start, min(_AT_ONCE_BYTES, nbytes - start), _MADV_POPULATE_WRITE):
                self._once.warn("the first snapshots will be slower", os.strerror(ctypes.get_errno()))
                return


def _lock(buffer: mmap.mmap, address: int, once: OnceLog) -> None:
    """Lock memory for as long as it is mapped. Only to locked memory a GPU copies while it computes."""
    import torch

    cuda: Any = torch.cuda
    runtime = cuda.cudart()
    error = int(runtime.cudaHostRegister(address, len(buffer), _PORTABLE))
    if error:
        once.warn("snapshots will stall the training thread", f"cudaHostRegister failed with error {error}")
    else:
        weakref.finalize(buffer, runtime.cudaHostUnregister, address).atexit = False  # by then the driver is gone
