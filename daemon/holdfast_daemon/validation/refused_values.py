"""Values of one run that are refused: counted, and logged once for each kind."""

import logging
from collections.abc import Mapping

from holdfast_proto.checks.value_rules import RefusedError
from holdfast_proto.v1 import store_pb2 as store

log = logging.getLogger(__name__)

SOURCES = ("spec", "record", "incident", "node", "event", "key", "signature", "repeated")
"""Where a refused value was: one of these messages, or a key that holds another type of value. One that is not signed
with the run's key, or that was written before, counts as such."""
LAUNCHER_KINDS = ("end_announced", "launcher_end")
"""Kinds of events that `holdfast observe` sends itself. They are numbered apart from those of its node's agent."""


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


class RepeatedError(RefusedError):
    """A value was written before the newest one of its sender: it was sent again after an outage, or replayed."""


class EventNumbers:
    """How far the events of each sender are."""

    def __init__(self, known: Mapping[str, int]) -> None:
        """Begin with those that the run's record has taken in."""
        self._known = known
        self.newest: dict[str, int] = {}
        """Sender -> number of its newest event, where that has changed."""

    def note(self, sender: str, number: int) -> None:
        """Take in the number of an event. Raises RepeatedError if it is not larger than the last one."""
        if number <= max(self._known.get(sender, 0), self.newest.get(sender, 0)):
            raise RepeatedError(f"an event of {sender} was written before the newest one that is known")
        self.newest[sender] = number


def sender_of(event: store.Event) -> str:
    """Return by whom an event is numbered."""
    return f"{event.node} launcher" if event.WhichOneof("kind") in LAUNCHER_KINDS else event.node
