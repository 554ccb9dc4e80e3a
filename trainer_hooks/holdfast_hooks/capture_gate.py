"""Keeps our threads from calling CUDA while the script captures a CUDA graph.

In its default mode, a capture fails if any thread of the process queries or waits for an event, or locks memory
meanwhile. torch itself lets its watchdog finish such queries before a capture begins (CUDAGraph::capture_begin). So
threads of the hooks pass this gate first, and a capture waits at most for the short call that is under way.

A capture that is made without ``torch.cuda.CUDAGraph``, in C++, is not seen here.
"""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from holdfast_hooks.hook_errors import OnceLog


class CaptureGate:
    """Knows whether a capture is under way, in any thread."""

    def __init__(self) -> None:
        # One thread may pass twice: a finalizer may run inside of a call.
        self._lock = threading.RLock()
        self._captures = 0
        self._patches: list[tuple[Any, str, Any, Any]] = []

    def install(self, once: OnceLog) -> None:
        """Follow the captures of this process from now on (training thread). Later calls do nothing."""
        torch = sys.modules.get("torch")
        if self._patches or torch is None:
            return
        self._captures = 0
        try:
            graph = torch.cuda.CUDAGraph
            self._patch(graph, "capture_begin", self._begin(graph.capture_begin))
            self._patch(graph, "capture_end", self._end(graph.capture_end))
        except (AttributeError, TypeError, KeyError) as error:
            once.warn("captures of CUDA graphs are not seen", error)
            self.uninstall()

    def uninstall(self) -> None:
        """Put the original methods back. Where another library has wrapped ours, its patch stays."""
        for owner, name, original, wrapper in reversed(self._patches):
            if vars(owner).get(name) is wrapper:
                setattr(owner, name, original)
        self._patches = []

    @contextlib.contextmanager
    def passing(self) -> Iterator[bool]:
        """Say whether this thread may call CUDA now. No capture begins before the block ends: keep it short."""
        with self._lock:
            yield self._captures == 0

    def _patch(self, owner: Any, name: str, wrapper: Any) -> None:  # noqa: ANN401 - a class of torch
        self._patches.append((owner, name, vars(owner)[name], wrapper))
        setattr(owner, name, wrapper)

    def _begin(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def capture_begin(graph: Any, *arguments: Any, **keywords: Any) -> Any:  # noqa: ANN401
            with self._lock:
                self._captures += 1
            try:
                return original(graph, *arguments, **keywords)
            except BaseException:
                self._over()
                raise

        return capture_begin

    def _end(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def capture_end(graph: Any, *arguments: Any, **keywords: Any) -> Any:  # noqa: ANN401
            try:
                return original(graph, *arguments, **keywords)
            finally:
                self._over()

        return capture_end

    def _over(self) -> None:
        with self._lock:
            self._captures = max(0, self._captures - 1)


GATE = CaptureGate()
"""The gate of this process: CUDA knows only one state of it, too."""
