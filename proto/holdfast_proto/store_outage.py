"""Says once per outage that the store cannot be used, and once that it can again."""

import logging
import time
from collections.abc import Callable

QUIET_S = 5.0
"""Shortest time between two outages that are reported: a store that comes and goes must not fill a log."""


class StoreOutage:
    """Reports the outages of one process's store in its log.

    ``where``: the store's URL. ``effect``: completes "Redis at URL cannot be used (why): ...".
    """

    def __init__(
        self, log: logging.Logger, where: str, effect: str, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._where = where
        self._effect = effect
        self._monotonic_s = monotonic_s
        self._begun_s: float | None = None
        self._reported_s: float | None = None
        self._is_reported = False

    def failed(self, error: Exception) -> None:
        """Note an operation that the store has not carried out."""
        now_s = self._monotonic_s()
        if self._begun_s is None:
            self._begun_s = now_s
        if not self._is_reported and (self._reported_s is None or now_s - self._reported_s >= QUIET_S):
            self._is_reported, self._reported_s = True, now_s
            why = " ".join(str(error).split()).rstrip(".") or type(error).__name__
            self._log.warning("Redis at %s cannot be used (%s): %s", self._where, why, self._effect)

    def answered(self) -> None:
        """Note an operation that the store has carried out."""
        if self._is_reported and self._begun_s is not None:
            self._log.warning(
                "Redis at %s can be used again, after %.1f s", self._where, self._monotonic_s() - self._begun_s
            )
        self._begun_s, self._is_reported = None, False
