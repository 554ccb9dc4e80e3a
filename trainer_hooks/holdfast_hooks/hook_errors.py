"""Errors that a user must act on, and warnings that appear once."""

import logging
from typing import ClassVar

from holdfast_proto.exit_codes import ExitCode


class ConfigurationError(Exception):
    """The run cannot work as configured. The message is one line that says what to change.

    If nothing catches it, it ends the rank with ``exit_code``, and no agent starts the rank again.
    """

    exit_code: ClassVar[int] = ExitCode.CONFIGURATION


class UnknownStartError(ConfigurationError):
    """A rank of another launcher does not know its state to start from. It may when it is started again."""

    exit_code = ExitCode.CHECKPOINTS_UNAVAILABLE


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
