"""Asks the agent for slots: the training thread says how large, the reporter asks and receives them."""

import ctypes
import mmap
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from holdfast_hooks.capture_gate import GATE
from holdfast_hooks.gpu_work import on_gpu
from holdfast_hooks.hook_errors import OnceLog
from holdfast_proto.snapshot import Slot, SnapshotError
from holdfast_proto.v1.session_pb2 import SlotGrant, SlotRequest

# Prepares slots for their first snapshot, off the training thread, so that it is as fast as later ones.
#
# A new mapping has no pages. Without preparation the first copy would stop at every page for the kernel to map it.

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


LEAST_SLOTS = 2
"""They take turns, so that the newest snapshot stays complete during the next copy. While all but one are pinned, each
snapshot overwrites the one before: the pinned ones are complete too."""
ASK_AGAIN_S = 30.0
"""Time after a refusal until the next request. A shortage of memory or descriptors on the node may have ended."""


@dataclass(frozen=True)
class GrantedSlots:
    """Slots that the agent has granted to this rank, mapped."""

    slots: tuple[Slot, ...]
    on_disk: bool
    """Whether they are files on a disk and not in shared memory."""
    files: tuple[tuple[str, int, int], ...]
    """Path, inode and size of each slot. A repeated grant of the same files is no new grant."""

    @property
    def bytes_per_slot(self) -> int:
        """Bytes of the smallest slot."""
        return min(slot.nbytes for slot in self.slots)


class SlotRequests:
    """Passes the need for slots from the training thread to the reporter, and the granted slots back.

    Only one thread writes each field, so that neither waits for the other.
    """

    def __init__(self, once: OnceLog) -> None:
        self.needed_bytes = 0
        """Bytes per slot that the training thread lacks; 0 if the slots are large enough. It alone writes this."""
        self.needed_slots = LEAST_SLOTS
        """Number of slots that the training thread wants. It alone writes this."""
        self.gpu: int | None = None
        """Index of a GPU that will copy into the slots; None: none, or not known yet. The training thread alone writes
        this."""
        self.grant: GrantedSlots | None = None
        self.refusal = ""
        """Reason why there are no slots; empty if there may be. The reporter alone writes this."""
        self._requested = SlotRequest()
        self._ask_at_s = 0.0
        """Monotonic time of the next request after a refusal."""
        self._preparation: SlotPreparation | None = None
        self._closed = False
        self._once = once

    def next_request(self) -> SlotRequest | None:
        """Return the request to send now, or None (reporter thread). Slots that a GPU turns out to need are locked."""
        if self.gpu is not None and self._preparation is not None and self.grant is not None:
            self._preparation.lock_for(self.gpu, self.grant.slots)
        held = self._held()
        needed = SlotRequest(bytes_per_slot=max(self.needed_bytes, held.bytes_per_slot), slots=self.needed_slots)
        is_more = needed.bytes_per_slot > max(held.bytes_per_slot, self._requested.bytes_per_slot)
        # Also if it holds enough of them: only the agent knows whether replica snapshots need another one.
        are_more = held.slots > 0 and needed.slots > self._requested.slots
        if monotonic() < self._ask_at_s or not (is_more or are_more):
            return None
        self._requested = needed
        return needed

    def _held(self) -> SlotRequest:
        """Return the request that the granted slots would answer. Slots on disk are never too few."""
        if self.grant is None:
            return SlotRequest()
        slots = self.needed_slots if self.grant.on_disk else len(self.grant.slots)
        return SlotRequest(bytes_per_slot=self.grant.bytes_per_slot, slots=slots)

    def forget_request(self) -> None:
        """Forget the request, because another agent got it (reporter thread)."""
        self._requested = SlotRequest()

    def receive(self, grant: SlotGrant) -> None:
        """Map the slots that the agent grants, or keep the reason for its refusal (reporter thread)."""
        if self._closed:
            return
        if not grant.paths:
            self.refusal = grant.reason or "the agent has no memory for snapshots"
            self._once.warn(f"this rank takes no snapshots, and asks again every {ASK_AGAIN_S:.0f} s", self.refusal)
            self._ask_later()
            return
        try:
            files = _identify(grant.paths)
            if self.grant is None or self.grant.files != files:
                self.grant = GrantedSlots(tuple(Slot(Path(path)) for path in grant.paths), grant.on_disk, files)
                if self._preparation is not None:
                    self._preparation.stop(timeout_s=0)
                if not grant.on_disk:
                    self._preparation = SlotPreparation(self.grant.slots, self._once)
            self.refusal = ""
        except (OSError, RuntimeError, SnapshotError) as error:  # RuntimeError: no thread can be started
            self._once.warn(f"granted snapshot slots cannot be opened, next try in {ASK_AGAIN_S:.0f} s", error)
            self._ask_later()

    def _ask_later(self) -> None:
        self.forget_request()
        self._ask_at_s = monotonic() + ASK_AGAIN_S

    def close(self, timeout_s: float) -> None:
        """Take no more slots; wait for up to ``timeout_s`` for the thread that still prepares some.

        For the training thread, after the end of the reporter.
        """
        self._closed = True
        if self._preparation is not None:
            self._preparation.stop(timeout_s)

    def give_up_slots(self) -> None:
        """Give up the slots after :meth:`close`. They are unmapped once nothing views them any more.

        If a GPU has locked them, that waits for its work. Do not call this in a rank whose GPU may hang.
        """
        self.grant = None


def _identify(paths: Sequence[str]) -> tuple[tuple[str, int, int], ...]:
    found = ((path, Path(path).stat()) for path in paths)
    return tuple((path, status.st_ino, status.st_size) for path, status in found)
