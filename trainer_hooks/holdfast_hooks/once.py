"""Warnings that appear once."""

import logging

_logger = logging.getLogger("holdfast_hooks")


class OnceLog:
    """Logs the first occurrence of each failure, so that a failure in every step does not fill the log."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def warn(self, failure: str, detail: object) -> None:
        """Log one line for ``failure`` unless it has been logged before, whatever its ``detail`` was then."""
        if failure not in self._seen:
            self._seen.add(failure)
            _logger.warning("%s: %s", failure, " ".join(str(detail).split()))
