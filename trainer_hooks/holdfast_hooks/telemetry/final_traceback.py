"""The last words of a rank: the end of the traceback that ends it."""

import os
import sys
import threading
import traceback
from collections.abc import Callable
from types import TracebackType

from holdfast_hooks.hook_errors import ConfigurationError


class FinalTraceback:
    """Replaces the exception hooks of the process by ones that keep and send the traceback and call the former ones.

    Args:
        keep: stores the text where it outlives the process.
        send: sends the text. It is called once, for the exception that ends the main thread.
    """

    def __init__(self, *, keep: Callable[[str], None], send: Callable[[str], None]) -> None:
        self._keep = keep
        self._send = send
        self._pid = os.getpid()
        self._said: BaseException | None = None
        self._installed = False
        self._previous = sys.excepthook
        self._previous_of_threads = threading.excepthook

    def install(self) -> None:
        """Replace the current hooks. Ours call them afterwards."""
        self._previous, self._previous_of_threads = sys.excepthook, threading.excepthook
        self._installed = True
        sys.excepthook = self._on_exception
        threading.excepthook = self._on_thread_exception

    def uninstall(self) -> None:
        """Put the former hooks back. A hook on top of ours stays, and ours then only calls the next one."""
        self._installed = False
        if sys.excepthook == self._on_exception:
            sys.excepthook = self._previous
        if threading.excepthook == self._on_thread_exception:
            threading.excepthook = self._previous_of_threads

    def say(self, error: BaseException) -> None:
        """Keep and send the last words for the exception that ends this rank, once."""
        if error is self._said or os.getpid() != self._pid:
            return
        self._said = error
        words = _one_line(error) if isinstance(error, ConfigurationError) else _traceback(error)
        self._keep(words)
        self._send(words)

    def _on_exception(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if self._installed:
            self.say(error)
            if isinstance(error, ConfigurationError):
                print(_one_line(error), file=sys.stderr, flush=True)
                sys.exit(error.exit_code)
        self._previous(kind, error, trace)

    def _on_thread_exception(self, arguments: threading.ExceptHookArgs) -> None:
        # The end of one thread need not be the end of the rank: keep it as evidence, but do not send last words.
        if self._installed and arguments.exc_value is not None and os.getpid() == self._pid:
            name = arguments.thread.name if arguments.thread else "unknown"
            self._keep(f"in thread {name}:\n{_traceback(arguments.exc_value)}")
        self._previous_of_threads(arguments)


def _one_line(error: BaseException) -> str:
    return f"holdfast: {' '.join(str(error).split())}"


def _traceback(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))
