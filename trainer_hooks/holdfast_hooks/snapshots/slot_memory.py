"""Prepares slots for their first snapshot, off the training thread, so that it is as fast as later ones.

A new mapping has no pages. Without preparation the first copy would stop at every page for the kernel to map it.
"""

import ctypes
import mmap
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from holdfast_hooks.capture_gate import GATE
from holdfast_hooks.gpu_work import on_gpu
from holdfast_hooks.once import OnceLog
from holdfast_proto.snapshot import Slot

_MADV_POPULATE_WRITE = 23
_AT_ONCE_BYTES = 8 << 20
"""Bytes to map in one call. During the call no other thread of the process can get memory from the kernel."""
_PORTABLE = 1
"""cudaHostRegisterPortable: lock memory for every GPU context."""

_CAPTURE_POLL_S = 0.05

# Through ctypes, because mmap.madvise() holds the interpreter's lock during the call.
_madvise = ctypes.CDLL(None, use_errno=True).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class SlotPreparation:
    """Maps the pages of slots in shared memory, and locks them for a GPU, in threads of its own.

    It leaves the contents as they are. If the kernel or the driver refuses, copies are slower.
    """

    def __init__(self, slots: Sequence[Slot], once: OnceLog) -> None:
        self._once = once
        self._stopped = threading.Event()
        self._lock_thread: threading.Thread | None = None
        # The slots are an argument and no attribute: a thread forgets those at its end, and then they can be unmapped.
        self._thread = self._start(self._map, slots)

    def lock_for(self, gpu: int, slots: Sequence[Slot]) -> None:
        """Lock the slots for a GPU that this process uses, once they are mapped. Later calls do nothing.

        Args:
            gpu: its index. Any other one would get a context of this process.
        """
        if self._lock_thread is None and not self._stopped.is_set():
            self._lock_thread = self._start(self._lock, gpu, slots)

    def join(self) -> None:
        """Wait until all slots are prepared."""
        self._thread.join()
        if self._lock_thread is not None:
            self._lock_thread.join()

    def stop(self, timeout_s: float) -> None:
        """Prepare no more; wait for the threads for up to ``timeout_s``."""
        self._stopped.set()
        (self._lock_thread or self._thread).join(timeout_s)

    @staticmethod
    def _start(work: Callable[..., None], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=work, args=arguments, name="holdfast-slots", daemon=True)
        thread.start()
        return thread

    def _map(self, slots: Sequence[Slot]) -> None:
        for slot in slots:
            self._populate(ctypes.addressof(ctypes.c_char.from_buffer(slot.buffer)), slot.nbytes)

    def _lock(self, gpu: int, slots: Sequence[Slot]) -> None:
        self._thread.join()
        for slot in slots:
            if not self._stopped.is_set():
                _lock(slot.buffer, gpu, self._once)

    def _populate(self, address: int, nbytes: int) -> None:
        for start in range(0, nbytes, _AT_ONCE_BYTES):
            if self._stopped.is_set():
                return
            if _madvise(address + start, min(_AT_ONCE_BYTES, nbytes - start), _MADV_POPULATE_WRITE):
                self._once.warn("the first snapshots will be slower", os.strerror(ctypes.get_errno()))
                return


def _lock(buffer: mmap.mmap, gpu: int, once: OnceLog) -> None:
    """Lock memory for as long as it is mapped. Only to locked memory a GPU copies while it computes."""
    import torch

    address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    cuda: Any = torch.cuda
    runtime = cuda.cudart()
    while True:
        with GATE.passing() as may_call:
            if may_call:
                with on_gpu(gpu):
                    error = int(runtime.cudaHostRegister(address, len(buffer), _PORTABLE))
                break
        time.sleep(_CAPTURE_POLL_S)
    if error:
        once.warn("snapshots will stall the training thread", f"cudaHostRegister failed with error {error}")
    else:
        # Not at exit: by then the driver is gone.
        weakref.finalize(buffer, _unlock, runtime.cudaHostUnregister, address, gpu).atexit = False


def _unlock(unregister: Callable[[int], object], address: int, gpu: int) -> None:
    with on_gpu(gpu):  # this may be any thread
        unregister(address)
