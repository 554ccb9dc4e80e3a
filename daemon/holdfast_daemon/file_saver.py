"""Writes a small file of the daemon without making its event loop wait for the disk."""

import contextlib
import logging
import threading
from collections.abc import Callable
from pathlib import Path

from holdfast_base.files import replace_file

log = logging.getLogger(__name__)


class FileSaver:
    """Replaces a file on a thread that exists only while there is something to write. Only this user may read it."""

    def __init__(self, path: Path, text: Callable[[], str], loss: str) -> None:
        """Write nothing yet.

        Args:
            path: the file.
            text: returns its content, on the thread.
            loss: what it costs if the file cannot be written, for the one line in the log.
        """
        self._path = path
        self._text = text
        self._loss = loss
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_due = False
        self._has_failed = False

    def save_soon(self) -> None:
        """Have the file written with all that is known by then."""
        with self._condition:
            self._is_due = True
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="file-saver", daemon=True)
                with contextlib.suppress(RuntimeError):  # no thread can be started now: the next change tries again
                    thread.start()
                    self._thread = thread

    def finish(self, patience_s: float) -> None:
        """Wait until the file is written, but not longer than ``patience_s``."""
        with self._condition:
            self._condition.wait_for(lambda: self._thread is None, patience_s)

    def _work(self) -> None:
        while True:
            with self._condition:
                if not self._is_due:
                    self._thread = None
                    self._condition.notify_all()
                    return
                self._is_due = False
            try:
                replace_file(self._path, self._text().encode(), mode=0o600)
            except Exception as error:  # noqa: BLE001 (whatever it is, the daemon works without the file)
                if not self._has_failed:
                    self._has_failed = True
                    log.error("%s cannot be written: %s: %s", self._path, self._loss, error)
