"""Decides from a rank's stacks, and from what its kernel shows, what its training thread does. Does no I/O."""

import re
from collections.abc import Iterable, Sequence

from holdfast_agent.blocking.proc_texts import LONGEST_NAME, clean
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

_FILE_LOCK_FILE = re.compile(r"/torch/utils/file_baton\.py$|/(filelock|portalocker|fasteners)/\w+\.py$")
"""Libraries that ask for a file's lock again and again, and sleep in between."""

_COMPILER_FILE = re.compile(
    r"/torch/_inductor/(async_compile|codecache|compile_fx|cpp_builder)\.py$|/torch/_inductor/compile_worker/"
    r"|/torch/utils/cpp_extension\.py$|/triton/(compiler/|runtime/build\.py$)"
)
_PROCESS_FILE = re.compile(r"/lib/python3[^/]*/(subprocess|multiprocessing/(process|popen_\w+))\.py$")

_LOCK_FILE = re.compile(r"/lib/python3[^/]*/(threading|queue)\.py$")
_LOCK_NATIVE = re.compile(r"^(_?PyThread_acquire_lock|lock_PyThread_acquire_lock|rlock_acquire|sem_wait|.*mutex_lock)")


def summarize(
    rank: int,
    training_thread: int,
    threads: Sequence[Thread],
    *,
    computes_on_cpu: bool,
    blocked: common.BlockedOn | None = None,
    gil_owner_blocked: common.BlockedOn | None = None,
) -> StackSummary:
    """Return the innermost frame of the user's code and the activity within it.

    Args:
        training_thread: number of the thread that trains, as the kernel shows it.
        computes_on_cpu: whether the rank's device is the CPU. With another device, a thread that waits for the device
            may spin or sleep, which looks like the user's own doing.
        blocked: what the training thread waits for in the kernel; None: nothing that shows.
        gil_owner_blocked: the same of the thread that holds the GIL.
    """
    training = next((thread for thread in threads if thread.system_id == training_thread), None)
    if training is None:
        return StackSummary(rank=rank)
    inner, user = _split(training.frames)
    summary = StackSummary(rank=rank, frame=str(user) if user else "")
    owner = sleeping_gil_owner(threads)
    if owner is not None:
        name = "" if owner is training else clean(owner.name or str(owner.system_id or ""), LONGEST_NAME)
        summary.activity = common.ACTIVITY_GIL_HELD
        summary.blocked_on.CopyFrom(
            common.BlockedOn(activity=common.ACTIVITY_GIL_HELD, thread=name, next=_without_next(gil_owner_blocked))
        )
        return summary
    by_frames = _waits_for(inner)
    if by_frames == common.ACTIVITY_COLLECTIVE:
        summary.activity = by_frames
        return summary
    may_run = computes_on_cpu or training.owns_gil
    runs = common.ACTIVITY_USER_CODE if training.active and may_run else common.ACTIVITY_UNSPECIFIED
    sleeps_itself = computes_on_cpu or any(not frame.is_python for frame in training.frames)
    activity = _finest(by_frames, blocked, sleeps_itself=sleeps_itself) or runs
    summary.activity = common.ACTIVITY_DATA if by_frames == common.ACTIVITY_DATA else activity
    if blocked is not None:
        summary.blocked_on.CopyFrom(blocked)
        summary.blocked_on.activity = activity
    return summary


def _finest(
    by_frames: "common.Activity", blocked: common.BlockedOn | None, *, sleeps_itself: bool
) -> "common.Activity":
    """Return the activity that the kernel shows.

    Frames decide if it shows nothing, only a sleep, or a process that is a compiler.
    """
    named = common.ACTIVITY_UNSPECIFIED if by_frames == common.ACTIVITY_DATA else by_frames
    kernel = blocked.activity if blocked is not None else common.ACTIVITY_UNSPECIFIED
    if kernel == common.ACTIVITY_SLEEP:
        return named or (kernel if sleeps_itself else common.ACTIVITY_UNSPECIFIED)
    if kernel == common.ACTIVITY_PROCESS and named == common.ACTIVITY_COMPILER:
        return named
    return kernel or named


def _without_next(blocked: common.BlockedOn | None) -> common.BlockedOn | None:
    """Return a copy that fits into another one: only one thing follows another."""
    if blocked is None:
        return None
    copy = common.BlockedOn()
    copy.CopyFrom(blocked)
    copy.ClearField("next")
    return copy


def _split(frames: Sequence[Frame]) -> tuple[Sequence[Frame], Frame | None]:
    """Return the frames that the user's innermost frame has called, and that frame."""
    for index, frame in enumerate(frames):
        if frame.is_python and not _LIBRARY.search(frame.file) and not _DATA_LOADER.search(frame.file):
            return frames[:index], frame
    return frames, None


def sleeping_gil_owner(threads: Iterable[Thread]) -> Thread | None:
    """Return the thread that sleeps in the kernel with the GIL held, if one does: no other thread can run."""
    return next((thread for thread in threads if thread.owns_gil and not thread.active), None)


def _waits_for(inner: Sequence[Frame]) -> "common.Activity":
    """Return what the thread waits for. The frame nearest to the user's code decides: a data loader waits on a lock.

    Only a file's lock decides from further inside: compilers and others take one.
    """
    found = next(filter(None, map(_wait_of, reversed(inner))), common.ACTIVITY_UNSPECIFIED)
    if found in (common.ACTIVITY_COLLECTIVE, common.ACTIVITY_DATA):
        return found
    return common.ACTIVITY_FILE_LOCK if any(_FILE_LOCK_FILE.search(frame.file) for frame in inner) else found


def _wait_of(frame: Frame) -> "common.Activity":
    if _DATA_LOADER.search(frame.file):
        return common.ACTIVITY_DATA
    if _is_collective(frame):
        return common.ACTIVITY_COLLECTIVE
    if _COMPILER_FILE.search(frame.file):
        return common.ACTIVITY_COMPILER
    if _PROCESS_FILE.search(frame.file):
        return common.ACTIVITY_PROCESS
    return common.ACTIVITY_LOCK if _is_lock(frame) else common.ACTIVITY_UNSPECIFIED


def _is_collective(frame: Frame) -> bool:
    if not frame.is_python:
        return bool(_COLLECTIVE_NATIVE.search(frame.function))
    waits_in_pipeline = _PIPELINE_FILE.search(frame.file) and "wait" in frame.function
    return bool(_COLLECTIVE_FILE.search(frame.file) or waits_in_pipeline)


def _is_lock(frame: Frame) -> bool:
    found = _LOCK_FILE.search(frame.file) if frame.is_python else _LOCK_NATIVE.search(frame.function)
    return bool(found)
