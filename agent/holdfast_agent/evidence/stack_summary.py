"""Decides from a rank's stacks what its training thread does. Does no I/O."""

import re
from collections.abc import Iterable, Sequence

from holdfast_agent.evidence.stack_dump import Frame, Thread
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1.store_pb2 import StackSummary

_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3|^<frozen|/holdfast_(hooks|agent)/")
_DATA_LOADER = re.compile(r"/torch/utils/data/|/holdfast_trainer/data/")

_COLLECTIVE_FILE = re.compile(
    r"/torch/distributed/(distributed_c10d|c10d_logger|_functional_collectives|rendezvous)\.py$"
    r"|/torch/distributed/fsdp/.*_fsdp_collectives\.py$"
)
_PIPELINE_FILE = re.compile(r"/torch/distributed/pipelining/")
_COLLECTIVE_NATIVE = re.compile(r"^gloo::|^nccl[A-Z]|^c10d::.*([Ww]ait|[Ss]ynchronize)")

_LOCK_FILE = re.compile(r"/lib/python3[^/]*/(threading|queue)\.py$")
_LOCK_NATIVE = re.compile(r"^(_?PyThread_acquire_lock|lock_PyThread_acquire_lock|rlock_acquire|sem_wait|.*mutex_lock)")


def summarize(rank: int, pid: int, threads: Sequence[Thread], *, computes_on_cpu: bool) -> StackSummary:
    """Return the innermost frame of the user's code and the activity within it.

    ``computes_on_cpu``: whether the rank's device is the CPU. With another device, a thread that waits for the device
    may spin, which looks like computing.
    """
    training = next((thread for thread in threads if thread.system_id == pid), None)
    if training is None:
        return StackSummary(rank=rank)
    inner, user = _split(training.frames)
    activity = _gil(threads) or _waits_for(inner)
    if not activity and training.active and (computes_on_cpu or training.owns_gil):
        activity = common.ACTIVITY_USER_CODE
    return StackSummary(rank=rank, frame=str(user) if user else "", activity=activity)


def _split(frames: Sequence[Frame]) -> tuple[Sequence[Frame], Frame | None]:
    """Return the frames that the user's innermost frame has called, and that frame."""
    for index, frame in enumerate(frames):
        if frame.is_python and not _LIBRARY.search(frame.file) and not _DATA_LOADER.search(frame.file):
            return frames[:index], frame
    return frames, None


def _gil(threads: Iterable[Thread]) -> "common.Activity":
    """Return ACTIVITY_GIL_HELD if a thread sleeps in the kernel with the GIL held: no other thread can run."""
    if any(thread.owns_gil and not thread.active for thread in threads):
        return common.ACTIVITY_GIL_HELD
    return common.ACTIVITY_UNSPECIFIED


def _waits_for(inner: Iterable[Frame]) -> "common.Activity":
    """Return what the thread waits for. The frame nearest to the user's code decides: a data loader waits on a lock."""
    for frame in reversed(list(inner)):
        if _DATA_LOADER.search(frame.file):
            return common.ACTIVITY_DATA
        if _is_collective(frame):
            return common.ACTIVITY_COLLECTIVE
        if _is_lock(frame):
            return common.ACTIVITY_LOCK
    return common.ACTIVITY_UNSPECIFIED


def _is_collective(frame: Frame) -> bool:
    if not frame.is_python:
        return bool(_COLLECTIVE_NATIVE.search(frame.function))
    waits_in_pipeline = _PIPELINE_FILE.search(frame.file) and "wait" in frame.function
    return bool(_COLLECTIVE_FILE.search(frame.file) or waits_in_pipeline)


def _is_lock(frame: Frame) -> bool:
    found = _LOCK_FILE.search(frame.file) if frame.is_python else _LOCK_NATIVE.search(frame.function)
    return bool(found)
