"""Warnings that do not repeat themselves."""

import logging

_logger = logging.getLogger("holdfast_hooks")


class OnceLog:
    """Logs the first occurrence of each failure. Counters tell how often it happened."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def warn(self, failure: str, detail: object) -> None:
        """Log one line for ``failure``, unless it was logged before; ``detail`` may differ each time."""
        if failure not in self._seen:
            self._seen.add(failure)
            _logger.warning("%s: %s", failure, " ".join(str(detail).split()))
