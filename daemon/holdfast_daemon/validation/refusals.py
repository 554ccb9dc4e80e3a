"""Counts what was refused of one run's messages, and logs the first of each source."""

import logging

log = logging.getLogger(__name__)

SOURCES = ("spec", "record", "incident", "node", "event", "key")
"""Where a refused value was: one of these messages, or a key that holds another type of value."""


class Refusals:
    """Refused values of one run."""

    def __init__(self, run: str) -> None:
        self._run = run
        self.counts = dict.fromkeys(SOURCES, 0)

    def add(self, source: str, what: str, reason: object, consequence: str = "it is passed over") -> None:
        """Count a refused value; log it if it is the first of its source."""
        self.counts[source] += 1
        if self.counts[source] == 1:
            log.error(
                "run %s: %s is refused: %s: %s (further ones of this kind are counted only)",
                self._run,
                what,
                " ".join(str(reason).split())[:300],
                consequence,
            )
