"""A file of /proc that is read again and again."""

import os


class ProcFile:
    """Reads a small file of this process in /proc. The file stays open: to open it costs more than to read it.

    The kernel writes the content anew at each read from the start.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = -1

    def read(self) -> str:
        """Return the content now, up to 1,024 bytes. Raises OSError."""
        if self._descriptor < 0:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(self._descriptor, 1024, 0).decode(errors="replace")

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
