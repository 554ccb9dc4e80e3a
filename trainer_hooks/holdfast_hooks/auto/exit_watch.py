"""Notices with which code a script ends: ``sys.exit(3)`` is no end of training, and at exit nothing else shows it."""

import sys
import threading
from collections.abc import Callable
from typing import NoReturn


class ExitWatch:
    """Replaces ``sys.exit`` by a function that notes the code and calls it."""

    def __init__(self) -> None:
        self._exit: Callable[..., NoReturn] = sys.exit
        self.has_failed = False
        """Whether the main thread has called ``sys.exit`` with a code other than 0."""

    def install(self) -> None:
        """Begin to note."""
        self._exit = sys.exit
        sys.exit = self._noted_exit

    def uninstall(self) -> None:
        """Put the former function back, unless something else has replaced ours."""
        if sys.exit == self._noted_exit:
            sys.exit = self._exit

    def _noted_exit(self, status: object = None, /) -> NoReturn:
        if threading.current_thread() is threading.main_thread():  # else it ends one thread only
            self.has_failed = status not in (None, 0)
        self._exit(status)
