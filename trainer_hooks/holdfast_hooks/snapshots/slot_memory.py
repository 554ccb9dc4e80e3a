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


class SlotPreparation:
    """A thread that maps the pages of slots in shared memory and locks them for a GPU that this process uses.

    Contents stay as they are. Where the kernel or the driver does not do it, the first copies are slower.
    """

    def __init__(self, slots: Sequence[Slot], once: OnceLog) -> None:
        self._once = once
        self._stopped = threading.Event()
        # The slots are an argument and no attribute: with its end the thread forgets them, and they can be unmapped.
        self._thread = threading.Thread(target=self._run, args=(slots,), name="holdfast-slots", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until all slots are ready."""
        self._thread.join()

    def stop(self, timeout_s: float) -> None:
        """Leave the rest as it is; wait for the thread for up to ``timeout_s``."""
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
    """Register memory with CUDA, for as long as it is mapped: only then a GPU copies to it while it computes."""
    import torch

    cuda: Any = torch.cuda
    runtime = cuda.cudart()
    error = int(runtime.cudaHostRegister(address, len(buffer), _PORTABLE))
    if error:
        once.warn("snapshots will hold up the training thread", f"cudaHostRegister failed with error {error}")
    else:
        weakref.finalize(buffer, runtime.cudaHostUnregister, address).atexit = False  # the driver is gone then
