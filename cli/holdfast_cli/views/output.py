"""Output that ends well: JSON for scripts, and lines that continue when nobody reads them any more."""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO


def print_json(value: object) -> None:
    """Print ``value`` as one line on stdout."""
    print(json.dumps(value), flush=True)


class _Lasting:
    """A stream that discards what it is given, once a write has failed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        """Return what the stream itself has, such as ``isatty`` and ``encoding``."""
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write ``text``."""
        try:
            return self._stream.write(text)
        except OSError:  # EPIPE without a reader, EIO without a terminal
            self._discard()
            return len(text)

    def flush(self) -> None:
        """Write what is buffered."""
        try:
            self._stream.flush()
        except OSError:
            self._discard()

    def _discard(self) -> None:
        # The descriptor, not the object: what is buffered must go somewhere too, at the end of the process.
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


@contextlib.contextmanager
def lasting_output() -> Iterator[None]:
    """Let no lost reader of stdout or stderr end what runs in the block."""
    with (
        contextlib.redirect_stdout(_Lasting(sys.stdout)),
        contextlib.redirect_stderr(_Lasting(sys.stderr)),
    ):
        yield
