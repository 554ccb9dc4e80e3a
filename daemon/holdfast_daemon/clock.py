"""Unix time that never jumps."""

import time


class Clock:
    """Reads the wall clock once; from then on it follows the monotonic clock."""

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()

    def now(self) -> float:
        """Return Unix time, seconds."""
        return self._offset_s + time.monotonic()
