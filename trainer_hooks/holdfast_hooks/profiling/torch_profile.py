"""One profile by torch.profiler. The training thread starts and ends it: torch's profiler belongs to a thread."""

import contextlib
import gc
import importlib
import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast_hooks.profiling.profile_files import write_compressed

# Ends our profile when the script starts a profiler of its own, so that the script's works as if there were no other.
#
# torch allows one profiler. A second one raises in the script, or takes the first one's trace away: to stop the
# first one then ends the process with a segmentation fault (torch 2.13). So while we profile, the two functions that
# start a profiler first end ours.

_STARTERS = ("_prepare_profiler", "_enable_profiler")
"""Functions of ``torch.autograd.profiler`` through which all its profilers are started."""

_PATIENCE_S = 5.0
"""Longest time for which another thread's profiler waits until the training thread has ended ours."""


class GiveWay:
    """Watches for other profilers from :meth:`install` to :meth:`uninstall`. Both are for the training thread.

    Args:
        torch: the module.
        end: ends our profile; called on the training thread, inside the call that starts the other profiler.
    """

    def __init__(self, torch: Any, end: Callable[[], None]) -> None:  # noqa: ANN401 - the module torch
        self._module = torch.autograd.profiler
        self._end = end
        self._pid, self._thread = os.getpid(), threading.get_ident()
        self._patches: list[tuple[str, Any, Any]] = []
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self._is_ending = False
        self.is_asked = False
        """Whether another thread waits until ours has ended. The training thread ends it at the end of the step."""
        self.is_robbed = False
        """Whether another thread has waited too long and has taken the trace. Ours must then never be stopped."""

    def install(self) -> None:
        """Watch. Raises AttributeError if this torch has no such functions, and has changed nothing then."""
        originals = [(name, getattr(self._module, name)) for name in _STARTERS]
        for name, original in originals:
            wrapper = self._wrapped(original)
            self._patches.append((name, original, wrapper))
            setattr(self._module, name, wrapper)

    def claim(self) -> bool:
        """Return whether ours may be stopped. From then on no other thread takes the trace, however long it waits."""
        with self._lock:
            self._is_ending = not self.is_robbed
            return self._is_ending

    def uninstall(self) -> None:
        """Put the functions back, and let other threads go on. A function that was wrapped since then stays."""
        for name, original, wrapper in self._patches:
            if getattr(self._module, name) is wrapper:
                setattr(self._module, name, original)
        self._patches = []
        self._is_over.set()

    def _wrapped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def starter(*arguments: Any, **keywords: Any) -> Any:  # noqa: ANN401
            self._make_room()
            return original(*arguments, **keywords)

        return starter

    def _make_room(self) -> None:
        if self._is_over.is_set() or os.getpid() != self._pid:  # a child that was forked profiles for itself
            return
        if threading.get_ident() == self._thread:
            self._end()
            return
        self.is_asked = True
        if self._is_over.wait(_PATIENCE_S):
            return
        with self._lock:
            self.is_robbed = not self._is_ending
        if not self.is_robbed:
            self._is_over.wait()  # to take the trace from under a profiler that just stops ends the process


_MOST_ENTRIES = 100_000
"""Allocations and releases that are kept, the newest. Each has a stack, and needs some KB in the file."""


class GpuMemoryRecord:
    """The history of torch's allocator. The training thread starts and ends it. On a CPU it does nothing.

    A history that the script itself records is only read.
    """

    def __init__(self, torch: Any) -> None:  # noqa: ANN401 - the module torch
        self._torch = torch
        self._is_ours = False
        self.snapshot: dict[str, Any] | None = None
        """What :meth:`end` has read; None: nothing."""

    def start(self) -> None:
        """Record from now on, if this process uses a GPU."""
        if self._torch.cuda.is_initialized() and not self._torch._C._cuda_isHistoryEnabled():  # noqa: SLF001
            self._torch.cuda.memory._record_memory_history(max_entries=_MOST_ENTRIES, stacks="python")  # noqa: SLF001
            self._is_ours = True

    def end(self, *, keep: bool) -> None:
        """End the record. ``keep``: read it first."""
        memory = self._torch.cuda.memory
        try:
            if keep and self._torch.cuda.is_initialized():
                self.snapshot = memory._snapshot()  # noqa: SLF001
        finally:
            if self._is_ours:
                self._is_ours = False
                memory._record_memory_history(enabled=None)  # noqa: SLF001

    def write(self, path: Path) -> None:
        """Write what was read. Raises OSError."""
        with path.open("wb") as file:
            pickle.dump(self.snapshot, file)


TRACE, MEMORY = "trace.json.gz", "memory.pickle.gz"


class OtherProfilerError(Exception):
    """Another profiler runs in this process, and is left alone."""


def prepare(torch: Any) -> None:  # noqa: ANN401 - the module torch
    """Import what the start of a profile imports, which takes a second (any thread but the training thread)."""
    if hasattr(torch, "_inductor"):
        importlib.import_module("torch._inductor.config")


class TorchProfile:
    """Profiles the calling thread and the work that it starts, until it is ended."""

    def __init__(self, torch: Any) -> None:  # noqa: ANN401 - the module torch
        self._torch = torch
        self._pid, self._thread = os.getpid(), threading.get_ident()
        self._memory = GpuMemoryRecord(torch)
        self._profile: Any = None
        self._ended: Any = None
        self._step: Any = None
        self._way: GiveWay | None = None
        self.gave_way = False
        """Whether it was ended because the script has started another profiler."""

    @property
    def is_wanted_elsewhere(self) -> bool:
        """Whether it must end now, because another thread waits for it or has taken its trace."""
        return self._way is not None and (self._way.is_asked or self._way.is_robbed)

    def start(self, first_step: int) -> None:
        """Start. Raises OtherProfilerError, or whatever torch raises; then nothing runs."""
        self._expect_alone()
        profiler = self._torch.profiler
        activities = [profiler.ProfilerActivity.CPU]
        if self._torch.cuda.is_initialized() and profiler.ProfilerActivity.CUDA in profiler.supported_activities():
            activities.append(profiler.ProfilerActivity.CUDA)
        way = GiveWay(self._torch, self._give_way)
        profile = profiler.profile(activities=activities, record_shapes=True, profile_memory=True)
        self._memory.start()
        try:
            profile.start()
            self._profile = profile
            way.install()
            self._way = way
            self.begin_step(first_step)
        except BaseException:
            self.end(keep=False)
            if not self._torch.autograd._profiler_enabled():  # noqa: SLF001
                # torch sets it first, and leaves it set if the start then fails.
                self._torch.autograd.profiler._is_profiler_enabled = False  # noqa: SLF001
            raise

    def begin_step(self, step: int) -> None:
        """Mark the beginning of a step in the trace, by the name that torch's own tools know."""
        self._end_step()
        mark = self._torch.profiler.record_function(f"ProfilerStep#{step}")
        mark.__enter__()
        self._step = mark

    def end(self, *, keep: bool) -> None:
        """End the profile. ``keep``: read the memory of the GPU, for :meth:`write`. Later calls do nothing."""
        profile, self._profile = self._profile, None
        way, self._way = self._way, None
        try:
            self._end_step()
            if profile is not None and self._may_stop(way):
                profile.stop()
        finally:
            if way is not None:
                way.uninstall()
            self._memory.end(keep=keep)
        self._ended = profile

    def _may_stop(self, way: GiveWay | None) -> bool:
        """Whether torch's profiler can be stopped here. Anything else may end the process (torch 2.13).

        It must have its trace, and must be stopped by the thread that has started it: another one closes the hooks if
        the script ends while a thread of it trains. A child of a fork has no profiler.
        """
        is_ours = (os.getpid(), threading.get_ident()) == (self._pid, self._thread)
        return is_ours and (way is None or way.claim())

    def write(self, folder: Path, stem: str) -> list[str]:
        """Write the files and return their names (any thread). Raises ProfileFileError.

        While torch writes the events, it holds the interpreter's lock: about 5 ms for a megabyte (torch 2.13, CPU).
        """
        names = [f"{stem}.{TRACE}"]
        ended, self._ended = self._ended, None
        write_compressed(folder / names[0], lambda raw: ended.export_chrome_trace(str(raw)), is_complete=_is_json)
        if self._memory.snapshot is not None:
            names.append(f"{stem}.{MEMORY}")
            write_compressed(folder / names[1], self._memory.write, is_complete=lambda tail: tail.endswith(b"."))
            self._memory.snapshot = None
        return names

    def _end_step(self) -> None:
        mark, self._step = self._step, None
        if mark is not None:
            mark.__exit__(None, None, None)

    def _give_way(self) -> None:
        """End, because the script starts a profiler. Nothing may raise into the script."""
        self.gave_way = True
        with contextlib.suppress(Exception):
            self.end(keep=False)

    def _expect_alone(self) -> None:
        """Raise OtherProfilerError if a profiler runs in any thread, or warms up to run."""
        torch = self._torch
        running = torch.autograd._profiler_enabled() or torch.autograd.profiler._is_profiler_enabled  # noqa: SLF001
        # A profiler that warms up shows in no flag. Ours would take its warm-up away, and its start would raise.
        if running or any(_warms_up(torch, one) for one in _profilers(torch)):
            raise OtherProfilerError(
                "the script's own torch profiler runs: it is left alone, so try again when it ends"
            )


def _profilers(torch: Any) -> list[Any]:  # noqa: ANN401 - the module torch
    """Return all profilers that the process has. It takes about 0.1 s for a million objects."""
    kind = torch.profiler.profile
    return [one for one in gc.get_objects() if issubclass(type(one), kind)]


def _warms_up(torch: Any, profile: Any) -> bool:  # noqa: ANN401 - the module torch, and a profiler of it
    if profile.current_action != torch.profiler.ProfilerAction.WARMUP:
        return False
    # One that was stopped in its warm-up keeps that action, and has results, as one that accumulates always has.
    return profile.acc_events or getattr(profile.profiler, "kineto_results", None) is None


def _is_json(tail: bytes) -> bool:
    return tail.rstrip().endswith(b"}")
