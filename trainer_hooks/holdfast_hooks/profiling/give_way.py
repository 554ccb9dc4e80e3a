"""Ends our profile when the script starts a profiler of its own, so that the script's works as if there were no other.

torch allows one profiler. A second one raises in the script, or takes the first one's trace away: to stop the first one
then ends the process with a segmentation fault (torch 2.13). So while we profile, the two functions that start a
profiler first end ours.
"""

import os
import threading
from collections.abc import Callable
from typing import Any

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
